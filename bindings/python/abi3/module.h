// SPDX-License-Identifier: Apache-2.0

// Modules of C++ functions, and Python types of C++ classes:
//
//   double Half(int64_t number) { return number / 2.0; }
//
//   WAYBILL_ABI3_MODULE(_example, "package._example", module) {
//     module.Function<"half", &Half, "number">();
//     abi3::Class<Counter>(module, "Counter")
//         .Init<&MakeCounter, "start">()            // Returns a unique_ptr<Counter> or a
//         shared_ptr<Counter>. .Method<"add", &Counter::Add, "count">() .MethodUnlocked<"wait",
//         [](Counter& self) { self.Wait(); }>() .Property<"total", &Counter::total>();
//   }
//
// An argument whose parameter is a std::optional may be left out or be None.
#ifndef WAYBILL_BINDINGS_PYTHON_ABI3_MODULE_H_
#define WAYBILL_BINDINGS_PYTHON_ABI3_MODULE_H_

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/abi3/buffer.h"
#include "bindings/python/abi3/function.h"
#include "bindings/python/abi3/object.h"
#include "bindings/python/abi3/values.h"

namespace waybill::abi3 {

// A module that is being filled. Its functions' definitions live as long as the process.
class Module {
 public:
  // `name`: with its package, "waybill._waybill".
  Module(PyObject* module, std::string name) : module_(module), name_(std::move(name)) {}

  template <Text name, auto function, Text... names>
  void Function(const char* documentation = nullptr) {
    AddFunction<Callable<name, function, Lock::kHeld, names...>>(documentation);
  }
  template <Text name, auto function, Text... names>
  void FunctionUnlocked(const char* documentation = nullptr) {
    AddFunction<Callable<name, function, Lock::kReleased, names...>>(documentation);
  }
  template <typename Value>
  void Constant(const char* name, const Value& value) {
    Add(name, ToPython(value));
  }
  void Add(const char* name, const Object& object) {
    Check(PyObject_SetAttrString(module_, name, object.get()));
  }
  Object Get(const char* name) const { return Object::Take(PyObject_GetAttrString(module_, name)); }
  const std::string& name() const { return name_; }

 private:
  template <typename Function>
  void AddFunction(const char* documentation) {
    static std::array<PyMethodDef, 2> definitions = {};  // The last one is empty.
    definitions[0] = Function::Definition(0, documentation);
    Check(PyModule_AddFunctions(module_, definitions.data()));
  }

  PyObject* const module_;
  const std::string name_;
};

// Makes a Python type of T, and adds it to a module at the end of the statement.
template <typename T>
class Class {
 public:
  Class(Module& module, const char* name) : module_(module), name_(name) {}
  Class(const Class&) = delete;

  ~Class() noexcept(false) {
    flags_ |= constructor_ == nullptr ? Py_TPFLAGS_DISALLOW_INSTANTIATION : 0;
    static std::vector<PyMethodDef> methods;
    static std::vector<PyGetSetDef> properties;
    methods = std::move(methods_);
    properties = std::move(properties_);
    methods.emplace_back();
    properties.emplace_back();
    std::vector<PyType_Slot> slots = {
        {Py_tp_methods, methods.data()},
        {Py_tp_getset, properties.data()},
        {Py_tp_dealloc, reinterpret_cast<void*>(&Destroy)},
    };
    if (constructor_ != nullptr)
      slots.push_back({Py_tp_new, reinterpret_cast<void*>(constructor_)});
    if (buffer_ != nullptr) slots.push_back({kGetBufferSlot, reinterpret_cast<void*>(buffer_)});
    slots.push_back({0, nullptr});
    static const std::string full_name = module_.name() + "." + name_;
    PyType_Spec spec = {full_name.c_str(), sizeof(Instance<T>), 0, flags_, slots.data()};
    const Object type = Object::Take(PyType_FromSpec(&spec));
    Instance<T>::name = name_;
    Instance<T>::type = reinterpret_cast<PyTypeObject*>(Object(type).Release());  // For good.
    module_.Add(name_, type);
  }

  template <auto function, Text... names>
  Class& Init() {
    constructor_ = &Callable<"__init__", function, Lock::kHeld, names...>::New;
    return *this;
  }
  template <Text name, auto function, Text... names>
  Class& Method() {
    methods_.push_back(Callable<name, function, Lock::kHeld, names...>::Definition(0, nullptr));
    return *this;
  }
  template <Text name, auto function, Text... names>
  Class& MethodUnlocked() {
    methods_.push_back(Callable<name, function, Lock::kReleased, names...>::Definition(0, nullptr));
    return *this;
  }
  template <Text name, auto function, Text... names>
  Class& StaticMethod() {
    using Function = Callable<name, function, Lock::kHeld, names...>;
    methods_.push_back(Function::Definition(METH_STATIC, nullptr));
    return *this;
  }
  template <Text name, auto function>
  Class& Property() {
    const getter get = &Callable<name, function, Lock::kHeld>::Get;
    properties_.push_back({name.characters, get, nullptr, nullptr, nullptr});
    return *this;
  }
  // `function` returns the read-only bytes of an object, which the object holds.
  template <ReadOnlyBytes (T::*function)() const>
  Class& Buffer() {
    buffer_ = [](PyObject* self, BufferView* view, int flags) {
      const ReadOnlyBytes bytes = (*Instance<T>::Of(self).value.*function)();
      return FillView(view, self, bytes, flags);
    };
    return *this;
  }

 private:
  static void Destroy(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    std::destroy_at(&Instance<T>::Of(self).value);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
  }

  Module& module_;
  const char* const name_;
  unsigned int flags_ = Py_TPFLAGS_DEFAULT;
  newfunc constructor_ = nullptr;
  GetBuffer buffer_ = nullptr;
  std::vector<PyMethodDef> methods_;
  std::vector<PyGetSetDef> properties_;
};

// Makes a module of what `fill` adds to it. Returns NULL with Python's error indicator set if that
// fails.
inline PyObject* MakeModule(PyModuleDef& definition, const char* full_name,
                            void (*fill)(Module& module)) {
  Object made;
  try {
    made = Object::Take(PyModule_Create(&definition));
    Module module(made.get(), full_name);
    fill(module);
    return made.Release();
  } catch (...) {
    SetPythonError();
    return nullptr;
  }
}

}  // namespace waybill::abi3

// Defines the extension module `name`, whose types say that they are `full_name`'s, and begins the
// function that fills it.
#define WAYBILL_ABI3_MODULE(name, full_name, parameter)                                          \
  static void Fill_##name(waybill::abi3::Module& parameter);                                     \
  PyMODINIT_FUNC PyInit_##name() {                                                               \
    static PyModuleDef definition = {                                                            \
        PyModuleDef_HEAD_INIT, #name, nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr}; \
    return waybill::abi3::MakeModule(definition, full_name, &Fill_##name);                       \
  }                                                                                              \
  static void Fill_##name(waybill::abi3::Module& parameter)

#endif  // WAYBILL_BINDINGS_PYTHON_ABI3_MODULE_H_
