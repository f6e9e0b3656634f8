// SPDX-License-Identifier: Apache-2.0

// Conversions between Python's objects and C++ values.
#ifndef WAYBILL_BINDINGS_PYTHON_ABI3_VALUES_H_
#define WAYBILL_BINDINGS_PYTHON_ABI3_VALUES_H_

#include <concepts>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/python/abi3/object.h"

namespace waybill::abi3 {

// Thrown if an object cannot be the argument that it is given for.
struct Mismatch {
  std::string wanted;  // "an int between 0 and 255"
  std::string found;   // "str", "256"
};

// A Python type that module.h makes of the C++ class T; each of its objects shares a T.
template <typename T>
struct Instance {
  PyObject_HEAD std::shared_ptr<T> value;

  static inline PyTypeObject* type = nullptr;
  static inline const char* name = nullptr;

  static Instance& Of(PyObject* object) { return *reinterpret_cast<Instance*>(object); }
  static Object New(std::shared_ptr<T> value) {
    Object made = Object::Take(PyType_GenericAlloc(type, 0));
    new (&Of(made.get()).value) std::shared_ptr<T>(std::move(value));
    return made;
  }
};

// The bytes of a `bytes` object.
struct RawBytes {
  std::string bytes;
};

// Returns the name of an object's type, for an error message: "str".
inline std::string KindOf(PyObject* object) {
  const Object type = Object::Share(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  return PyUnicode_AsUTF8AndSize(type.Attribute("__name__").get(), nullptr);
}

// Argument<T>::From() converts the argument for a parameter of type T; Argument<T>::Type is what
// holds it meanwhile. Unless specialised below, T is a class that module.h has made a Python type
// of.
template <typename T>
struct Argument {
  using Type = T&;
  static T& From(PyObject* object) { return *Shared(object); }
  static const std::shared_ptr<T>& Shared(PyObject* object) {
    if (PyObject_TypeCheck(object, Instance<T>::type) == 0) {
      throw Mismatch{std::string("a ") + Instance<T>::name, KindOf(object)};
    }
    return Instance<T>::Of(object).value;
  }
};

template <typename T>
struct Argument<std::shared_ptr<T>> {
  using Type = std::shared_ptr<T>;
  static std::shared_ptr<T> From(PyObject* object) { return Argument<T>::Shared(object); }
};

template <std::integral T>
struct Argument<T> {
  using Type = T;
  static T From(PyObject* object) {
    using Limits = std::numeric_limits<T>;
    static const std::string wanted =
        "an int between " + std::to_string(Limits::min()) + " and " + std::to_string(Limits::max());
    if (PyIndex_Check(object) == 0) throw Mismatch{wanted, KindOf(object)};
    const Object index = Object::Take(PyNumber_Index(object));
    const auto value = [&] {
      if constexpr (std::is_signed_v<T>)
        return PyLong_AsLongLong(index.get());
      else
        return PyLong_AsUnsignedLongLong(index.get());
    }();
    const bool failed = value == static_cast<decltype(value)>(-1) && PyErr_Occurred() != nullptr;
    if (failed || !std::in_range<T>(value)) {
      PyErr_Clear();
      const Object text = Object::Take(PyObject_Str(index.get()));
      throw Mismatch{wanted, PyUnicode_AsUTF8AndSize(text.get(), nullptr)};
    }
    return static_cast<T>(value);
  }
};

template <>
struct Argument<bool> {
  using Type = bool;
  static bool From(PyObject* object) {
    const int truth = PyObject_IsTrue(object);
    Check(truth);
    return truth != 0;
  }
};

template <>
struct Argument<std::string> {
  using Type = std::string;
  static std::string From(PyObject* object) {
    if (PyUnicode_Check(object) == 0) throw Mismatch{"a str", KindOf(object)};
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == nullptr) throw PythonError();
    std::string whole(text, static_cast<size_t>(size));
    // C would end it there.
    if (whole.find('\0') != std::string::npos) throw Mismatch{"a str without NUL", "one with NUL"};
    return whole;
  }
};

template <>
struct Argument<RawBytes> {
  using Type = RawBytes;
  static RawBytes From(PyObject* object) {
    if (PyBytes_Check(object) == 0) throw Mismatch{"bytes", KindOf(object)};
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    Check(PyBytes_AsStringAndSize(object, &bytes, &size));
    return {{bytes, static_cast<size_t>(size)}};
  }
};

template <>
struct Argument<Object> {
  using Type = Object;
  static Object From(PyObject* object) { return Object::Share(object); }
};

template <typename T>
struct Argument<std::optional<T>> {
  using Type = std::optional<T>;
  static Type From(PyObject* object) {
    if (object == Py_None) return std::nullopt;
    return Argument<T>::From(object);
  }
};

// The elements may be std::shared_ptr<T>, but not T&: the sequence may drop an element meanwhile.
template <typename T>
struct Argument<std::vector<T>> {
  using Type = std::vector<T>;
  static Type From(PyObject* object) {
    const bool sequence =
        PySequence_Check(object) != 0 && PyUnicode_Check(object) == 0 && PyBytes_Check(object) == 0;
    if (!sequence) throw Mismatch{"a sequence", KindOf(object)};
    const Py_ssize_t size = PySequence_Size(object);
    if (size < 0) throw PythonError();
    std::vector<T> values;
    values.reserve(static_cast<size_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      const Object element = Object::Take(PySequence_GetItem(object, i));
      values.push_back(Argument<T>::From(element.get()));
    }
    return values;
  }
};

// ToPython() makes a Python object of a value.
inline Object ToPython(Object object) { return object; }
inline Object ToPython(bool value) { return Object::Take(PyBool_FromLong(value ? 1 : 0)); }
inline Object ToPython(double value) { return Object::Take(PyFloat_FromDouble(value)); }
inline Object ToPython(std::string_view text) {
  // Bytes that are not UTF-8 are shown as \xNN, because the text may quote a file.
  return Object::Take(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}
inline Object ToPython(const std::string& text) { return ToPython(std::string_view(text)); }
inline Object ToPython(const char* text) { return ToPython(std::string_view(text)); }
inline Object ToPython(const RawBytes& raw) {
  return Object::Take(
      PyBytes_FromStringAndSize(raw.bytes.data(), static_cast<Py_ssize_t>(raw.bytes.size())));
}
template <std::integral T>
Object ToPython(T value) {
  if constexpr (std::is_signed_v<T>)
    return Object::Take(PyLong_FromLongLong(value));
  else
    return Object::Take(PyLong_FromUnsignedLongLong(value));
}
inline Object None() { return Object::Share(Py_None); }
template <typename T>
Object ToPython(std::unique_ptr<T> value) {
  return Instance<T>::New(std::move(value));
}
template <typename T>
Object ToPython(std::shared_ptr<T> value) {
  return Instance<T>::New(std::move(value));
}
template <typename T>
Object ToPython(const std::vector<T>& values) {
  Object list = Object::Take(PyList_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    // It takes the reference over even if it fails.
    Check(PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), ToPython(values[i]).Release()));
  }
  return list;
}
template <typename T>
  requires std::is_class_v<T>
Object ToPython(std::optional<T> value) {
  return value ? ToPython(std::make_unique<T>(std::move(*value))) : None();
}

template <typename... Values>
Object Tuple(Values&&... values) {
  const Object elements[] = {ToPython(std::forward<Values>(values))...};
  return Object::Take([&]<size_t... index>(std::index_sequence<index...>) {
    return PyTuple_Pack(sizeof...(Values), elements[index].get()...);
  }(std::index_sequence_for<Values...>()));
}

// A dict with keys that are text.
class Dict {
 public:
  template <typename Value>
  Dict& Set(const char* key, Value&& value) {
    const Object object = ToPython(std::forward<Value>(value));
    Check(PyDict_SetItemString(dict_.get(), key, object.get()));
    return *this;
  }
  Object object() const { return dict_; }

 private:
  Object dict_ = Object::Take(PyDict_New());
};

}  // namespace waybill::abi3

#endif  // WAYBILL_BINDINGS_PYTHON_ABI3_VALUES_H_
