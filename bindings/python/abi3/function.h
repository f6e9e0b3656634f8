// SPDX-License-Identifier: Apache-2.0

// C++ functions that Python can call.
#ifndef WAYBILL_BINDINGS_PYTHON_ABI3_FUNCTION_H_
#define WAYBILL_BINDINGS_PYTHON_ABI3_FUNCTION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "bindings/python/abi3/object.h"
#include "bindings/python/abi3/values.h"

namespace waybill::abi3 {

// Text as a template argument: the name of a parameter.
template <size_t size>
struct Text {
  consteval Text(const char (&text)[size]) {  // NOLINT(google-explicit-constructor)
    std::copy_n(text, size, characters);
  }
  char characters[size];
};

// Says if a function runs while it holds Python's lock. Arguments and results are always converted
// under the lock.
enum class Lock { kHeld, kReleased };

// Called by a function that is about to return to Python, in a catch block. Sets Python's error
// indicator for an exception of the module's own and returns true, or returns false.
inline bool (*g_translate)() = nullptr;

// Sets Python's error indicator for the exception that is being handled.
inline void SetPythonError() {
  try {
    if (g_translate != nullptr && g_translate()) return;
    throw;
  } catch (const PythonError&) {  // It is set.
  } catch (const ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

// The types of a function's parameters. Those of a member function begin with its class.
template <typename Function>
struct Parameters;
template <typename Result, typename... P>
struct Parameters<Result (*)(P...)> {
  using Types = std::tuple<std::remove_cvref_t<P>...>;
};
template <typename Result, typename Class, typename... P>
struct Parameters<Result (Class::*)(P...)> {
  using Types = std::tuple<Class, std::remove_cvref_t<P>...>;
};
template <typename Result, typename Class, typename... P>
struct Parameters<Result (Class::*)(P...) const> : Parameters<Result (Class::*)(P...)> {};
template <typename Lambda>
  requires requires { &Lambda::operator(); }
struct Parameters<Lambda> {
  // A lambda's class is not a parameter.
  template <typename First, typename... Rest>
  static std::tuple<Rest...> WithoutFirst(std::tuple<First, Rest...>*);
  using Types = decltype(WithoutFirst(
      static_cast<typename Parameters<decltype(&Lambda::operator())>::Types*>(nullptr)));
};

// The arguments of one call, in the order of the parameters. NULL: not given.
class Given {
 public:
  Given(const char* function, const char* const* names, PyObject** arguments, size_t count)
      : function_(function), names_(names), arguments_(arguments), count_(count) {}

  void AddPositional(size_t index, PyObject* argument) {
    if (index >= count_) {
      PyErr_Format(PyExc_TypeError, "%s() takes %zu arguments at most", function_, count_);
      throw PythonError();
    }
    arguments_[index] = argument;
  }
  void AddNamed(PyObject* name, PyObject* argument) {
    for (size_t i = 0; i < count_; ++i) {
      if (PyUnicode_CompareWithASCIIString(name, names_[i]) != 0) continue;
      if (arguments_[i] != nullptr) {
        PyErr_Format(PyExc_TypeError, "%s() got its argument \"%s\" twice", function_, names_[i]);
        throw PythonError();
      }
      arguments_[i] = argument;
      return;
    }
    PyErr_Format(PyExc_TypeError, "%s() has no argument \"%U\"", function_, name);
    throw PythonError();
  }

 private:
  const char* const function_;
  const char* const* const names_;
  PyObject** const arguments_;
  const size_t count_;
};

// Converts one argument. One that is not given is None if it may be, and otherwise an error.
template <typename Parameter>
typename Argument<Parameter>::Type Convert(const char* function, const char* name,
                                           PyObject* given) {
  try {
    constexpr bool kOptional = requires(Parameter parameter) { parameter.has_value(); };
    if (given == nullptr && kOptional) given = Py_None;
    if (given == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() needs its argument \"%s\"", function, name);
      throw PythonError();
    }
    return Argument<Parameter>::From(given);
  } catch (const Mismatch& mismatch) {
    PyErr_Format(PyExc_TypeError, "%s(): \"%s\" has to be %s, not %s", function, name,
                 mismatch.wanted.c_str(), mismatch.found.c_str());
    throw PythonError();
  }
}

// Python's side of a C++ function. `names` are those of its parameters; that of the object itself
// is no part of them.
template <Text name, auto function, Lock lock, Text... names>
class Callable {
 public:
  // Returns a PyMethodDef for it. `flags`: METH_STATIC, or 0.
  static PyMethodDef Definition(int flags, const char* documentation) {
    const auto call = reinterpret_cast<void (*)()>(&CallFast);
    return {name.characters, reinterpret_cast<PyCFunction>(call),
            METH_FASTCALL | METH_KEYWORDS | flags, documentation};
  }

  // Is a tp_new, if the function returns the new object's value.
  static PyObject* New(PyTypeObject*, PyObject* positional, PyObject* named) {
    return Guard([&] {
      Arguments arguments{};
      Given given(name.characters, kNames.data(), arguments.data(), kCount);
      for (Py_ssize_t i = 0; i < PyTuple_Size(positional); ++i) {
        given.AddPositional(static_cast<size_t>(i), PyTuple_GetItem(positional, i));
      }
      PyObject *key = nullptr, *value = nullptr;
      for (Py_ssize_t at = 0; named != nullptr && PyDict_Next(named, &at, &key, &value) != 0;) {
        given.AddNamed(key, value);
      }
      return Run(nullptr, arguments);
    });
  }

  // Is the getter of a property.
  static PyObject* Get(PyObject* self, void*) {
    return Guard([&] { return Run(self, Arguments{}); });
  }

 private:
  using Types = typename Parameters<std::remove_cv_t<decltype(function)>>::Types;
  static constexpr size_t kCount = sizeof...(names);
  static constexpr std::array<const char*, kCount> kNames = {names.characters...};
  static constexpr size_t kOwn = std::tuple_size_v<Types> - kCount;  // 1 if there is a self.
  static_assert(kOwn <= 1, "each parameter needs a name");
  using Arguments = std::array<PyObject*, kCount>;

  static PyObject* CallFast(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                            PyObject* names_of_others) {
    return Guard([&] {
      Arguments arguments{};
      Given given(name.characters, kNames.data(), arguments.data(), kCount);
      for (Py_ssize_t i = 0; i < positional; ++i) {
        given.AddPositional(static_cast<size_t>(i), values[i]);
      }
      const Py_ssize_t others = names_of_others == nullptr ? 0 : PyTuple_Size(names_of_others);
      for (Py_ssize_t i = 0; i < others; ++i) {
        given.AddNamed(PyTuple_GetItem(names_of_others, i), values[positional + i]);
      }
      return Run(self, arguments);
    });
  }

  template <typename Body>
  static PyObject* Guard(const Body& body) {
    try {
      return body().Release();
    } catch (...) {
      SetPythonError();
      return nullptr;
    }
  }

  static Object Run(PyObject* self, const Arguments& arguments) {
    return [&]<size_t... index>(std::index_sequence<index...>) {
      if constexpr (kOwn == 1) {
        using Self = std::tuple_element_t<0, Types>;
        return Invoke(Convert<Self>(name.characters, "self", self),
                      Convert<std::tuple_element_t<index + 1, Types>>(
                          name.characters, kNames[index], arguments[index])...);
      } else {
        return Invoke(Convert<std::tuple_element_t<index, Types>>(name.characters, kNames[index],
                                                                  arguments[index])...);
      }
    }(std::make_index_sequence<kCount>());
  }

  template <typename... Values>
  static Object Invoke(Values&&... values) {
    const auto invoke = [&]() -> decltype(auto) {
      if constexpr (lock == Lock::kHeld) {
        return std::invoke(function, std::forward<Values>(values)...);
      } else {
        static_assert((!std::is_same_v<std::remove_cvref_t<Values>, Object> && ...),
                      "a function without the lock may not own an Object");
        const Unlocked unlocked;
        return std::invoke(function, std::forward<Values>(values)...);
      }
    };
    if constexpr (std::is_void_v<decltype(invoke())>) {
      invoke();
      return None();
    } else {
      return ToPython(invoke());
    }
  }
};

}  // namespace waybill::abi3

#endif  // WAYBILL_BINDINGS_PYTHON_ABI3_FUNCTION_H_
