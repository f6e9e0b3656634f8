// Where Python's tensors lie, by DLPack and the buffer protocol, and regions over them.
#include <cstring>

#include "bindings/python/waybill/dlpack.h"
#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

// (address, device type, device, (code, bits, lanes), shape, strides or None, read-only, owner):
// what waybill.memory reads. The owner holds the memory.
py::tuple Describe(const dlpack::Tensor& tensor, bool read_only, const py::object& owner) {
  const auto numbers = [&](const int64_t* values) -> py::object {
    if (values == nullptr) return py::none();
    py::tuple tuple(tensor.dimensions);
    for (int32_t d = 0; d < tensor.dimensions; ++d) tuple[d] = values[d];
    return tuple;
  };
  const auto address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  return py::make_tuple(address, tensor.device_type, tensor.device_id,
                        py::make_tuple(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
                        numbers(tensor.shape), numbers(tensor.strides), read_only, owner);
}

// Takes what is in the capsule over, which makes the capsule useless to anybody else.
template <typename T>
T* TakeOver(const py::capsule& capsule, const char* used_name) {
  T* managed = capsule.get_pointer<T>();
  if (PyCapsule_SetName(capsule.ptr(), used_name) != 0) throw py::error_already_set();
  return managed;
}

template <typename T>
py::capsule Owner(T* managed) {
  return py::capsule(managed, [](void* pointer) {
    auto* owned = static_cast<T*>(pointer);
    if (owned->deleter != nullptr) owned->deleter(owned);
  });
}

py::tuple ReadDlpack(const py::capsule& capsule) {
  const std::string name = capsule.name() == nullptr ? "" : capsule.name();
  if (name == "dltensor_versioned") {
    auto* managed = TakeOver<dlpack::ManagedVersioned>(capsule, "used_dltensor_versioned");
    const py::capsule owner = Owner(managed);
    if (managed->major != 1) {
      throw py::value_error("DLPack " + std::to_string(managed->major) + "." +
                            std::to_string(managed->minor) + ": only version 1 is known");
    }
    return Describe(managed->tensor, (managed->flags & 1) != 0, owner);
  }
  if (name == "dltensor") {
    // Nothing says that it may be written. JAX's arrays, which must not be, come like this.
    auto* managed = TakeOver<dlpack::Managed>(capsule, "used_dltensor");
    return Describe(managed->tensor, true, Owner(managed));
  }
  throw py::value_error("a capsule \"" + name + "\" is no DLPack tensor that can be taken");
}

// (address, bytes, read-only) of a memoryview, which has to outlive their use.
py::tuple ReadBuffer(const py::memoryview& view) {
  const Py_buffer& buffer = *PyMemoryView_GET_BUFFER(view.ptr());
  return py::make_tuple(reinterpret_cast<uintptr_t>(buffer.buf), buffer.len, buffer.readonly != 0);
}

std::unique_ptr<KeptRegion> Lend(const KeptContext& context, uintptr_t address, uint64_t size_bytes,
                                 uint32_t kind, bool read_only, const std::string& name,
                                 py::object owners) {
  waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
  options.data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  options.size_bytes = size_bytes;
  options.kind = kind;
  options.read_only = read_only ? 1 : 0;
  options.name = name.c_str();
  return std::make_unique<KeptRegion>(Make<Region>(waybill_region_create, context.get(), &options),
                                      std::move(owners));
}

}  // namespace

void AddMemory(py::module_& module) {
  module.def("read_dlpack", &ReadDlpack, py::arg("capsule"));
  module.def("read_buffer", &ReadBuffer, py::arg("view"));
  py::class_<KeptRegion>(module, "Region")
      .def(py::init(&Lend), py::arg("context"), py::arg("address"), py::arg("size_bytes"),
           py::arg("kind"), py::arg("read_only"), py::arg("name"), py::arg("owners"))
      .def("close", &KeptRegion::Close);
}

}  // namespace waybill::python
