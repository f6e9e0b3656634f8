// SPDX-License-Identifier: Apache-2.0

// Where Python's tensors lie, by DLPack and the buffer protocol, and regions over them.
#include <cstring>

#include "bindings/python/waybill/dlpack.h"
#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

// (address, device type, device, (code, bits, lanes), shape, strides or None, read-only, owner):
// what waybill.memory reads. The owner holds the memory.
abi3::Object Describe(const dlpack::Tensor& tensor, bool read_only, const abi3::Object& owner) {
  const auto numbers = [&](const int64_t* values) {
    if (values == nullptr) return abi3::None();
    const abi3::Object list =
        abi3::ToPython(std::vector<int64_t>(values, values + tensor.dimensions));
    return abi3::Object::Take(PyList_AsTuple(list.get()));
  };
  const auto address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  return abi3::Tuple(address, tensor.device_type, tensor.device_id,
                     abi3::Tuple(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
                     numbers(tensor.shape), numbers(tensor.strides), read_only, owner);
}

// Takes what is in the capsule over, which makes the capsule useless to anybody else. Returns it,
// and a capsule that owns it.
template <typename T>
std::pair<T*, abi3::Object> TakeOver(const abi3::Object& capsule, const char* name,
                                     const char* used_name) {
  auto* managed = static_cast<T*>(PyCapsule_GetPointer(capsule.get(), name));
  if (managed == nullptr) throw abi3::PythonError();
  const auto destroy = [](PyObject* owner) {
    auto* owned = static_cast<T*>(PyCapsule_GetPointer(owner, nullptr));
    if (owned->deleter != nullptr) owned->deleter(owned);
  };
  abi3::Object owner = abi3::Object::Take(PyCapsule_New(managed, nullptr, destroy));
  if (PyCapsule_SetName(capsule.get(), used_name) != 0) {
    PyCapsule_SetDestructor(owner.get(), nullptr);  // The capsule still has it.
    throw abi3::PythonError();
  }
  return {managed, std::move(owner)};
}

abi3::Object ReadDlpack(const abi3::Object& capsule) {
  const char* found = PyCapsule_GetName(capsule.get());  // NULL if it is no capsule, too.
  if (found == nullptr && PyErr_Occurred() != nullptr) throw abi3::PythonError();
  const std::string name = found == nullptr ? "" : found;
  if (name == "dltensor_versioned") {
    const auto [managed, owner] = TakeOver<dlpack::ManagedVersioned>(capsule, "dltensor_versioned",
                                                                     "used_dltensor_versioned");
    if (managed->major != 1) {
      throw abi3::ValueError("DLPack " + std::to_string(managed->major) + "." +
                             std::to_string(managed->minor) + ": only version 1 is known");
    }
    return Describe(managed->tensor, (managed->flags & 1) != 0, owner);
  }
  if (name == "dltensor") {
    // Nothing says that it may be written. JAX's arrays, which must not be, come like this.
    const auto [managed, owner] = TakeOver<dlpack::Managed>(capsule, "dltensor", "used_dltensor");
    return Describe(managed->tensor, true, owner);
  }
  throw abi3::ValueError("a capsule \"" + name + "\" is no DLPack tensor that can be taken");
}

// (address, bytes, read-only) of a memoryview, which has to outlive their use.
abi3::Object ReadBuffer(const abi3::Object& view) {
  abi3::BufferView buffer = {};
  abi3::Check(abi3::PyObject_GetBuffer(view.get(), &buffer, abi3::kFullReadOnly));
  const auto address = reinterpret_cast<uintptr_t>(buffer.buf);
  const Py_ssize_t size_bytes = buffer.len;
  const bool read_only = buffer.readonly != 0;
  abi3::PyBuffer_Release(&buffer);
  return abi3::Tuple(address, size_bytes, read_only);
}

std::unique_ptr<KeptRegion> Lend(const KeptContext& context, uintptr_t address, uint64_t size_bytes,
                                 uint32_t kind, bool read_only, const std::string& name,
                                 abi3::Object owners) {
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

void AddMemory(abi3::Module& module) {
  module.Function<"read_dlpack", &ReadDlpack, "capsule">();
  module.Function<"read_buffer", &ReadBuffer, "view">();
  abi3::Class<KeptRegion>(module, "Region")
      .Init<&Lend, "context", "address", "size_bytes", "kind", "read_only", "name", "owners">()
      .Method<"close", &KeptRegion::Close>();
}

}  // namespace waybill::python
