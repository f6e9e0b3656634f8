// SPDX-License-Identifier: Apache-2.0

// Python objects, Python's exceptions and its lock, by the limited API alone.
//
// This folder is a small pybind11 for the limited API of Python 3.10 (Py_LIMITED_API), so that one
// extension module runs in CPython 3.10 and all later ones. pybind11 does not support the limited
// API, and nanobind supports that of 3.12.
#ifndef WAYBILL_BINDINGS_PYTHON_ABI3_OBJECT_H_
#define WAYBILL_BINDINGS_PYTHON_ABI3_OBJECT_H_

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#ifndef Py_LIMITED_API
#error "Py_LIMITED_API has to be defined: depend on //bindings/python/abi3"
#endif

namespace waybill::abi3 {

// Thrown when Python's error indicator is set. It then becomes the exception of the function that
// Python has called.
class PythonError : public std::exception {
 public:
  const char* what() const noexcept override { return "a Python exception is set"; }
};

// Thrown for a ValueError.
class ValueError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Owns a reference. Needs Python's lock wherever it is copied or destroyed.
class Object {
 public:
  Object() = default;
  Object(const Object& other) : object_(other.object_) { Py_XINCREF(object_); }
  Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Object& operator=(Object other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object() { Py_XDECREF(object_); }

  // Takes over a new reference. Throws PythonError if it is NULL.
  static Object Take(PyObject* object) {
    if (object == nullptr) throw PythonError();
    Object taken;
    taken.object_ = object;
    return taken;
  }
  // Adds a reference.
  static Object Share(PyObject* object) {
    Py_XINCREF(object);
    return Take(object);
  }
  static Object Import(const char* module) { return Take(PyImport_ImportModule(module)); }

  PyObject* get() const { return object_; }
  PyObject* Release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

  Object Attribute(const char* name) const { return Take(PyObject_GetAttrString(object_, name)); }
  // Calls it with positional arguments.
  template <typename... Arguments>
  Object operator()(const Arguments&... arguments) const {
    return Take(PyObject_CallFunctionObjArgs(object_, arguments.get()..., nullptr));
  }

 private:
  PyObject* object_ = nullptr;
};

// Throws PythonError if a function that returns -1 on errors has failed.
inline void Check(int result) {
  if (result < 0) throw PythonError();
}

// Lets other threads run Python until it is destroyed.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  ~Unlocked() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* const state_;
};

// Holds Python's lock until it is destroyed, on any thread.
class Locked {
 public:
  Locked() : state_(PyGILState_Ensure()) {}
  Locked(const Locked&) = delete;
  ~Locked() { PyGILState_Release(state_); }

 private:
  const PyGILState_STATE state_;
};

}  // namespace waybill::abi3

#endif  // WAYBILL_BINDINGS_PYTHON_ABI3_OBJECT_H_
