#include "core/device/shared_memory.h"

#include <bit>

#include "core/base/random_bits.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// A process cannot open what it has itself, and need not.
absl::StatusOr<uint64_t> ThisProcess() {
  static const absl::StatusOr<uint64_t> bits = RandomBits();
  return bits;
}

}  // namespace

absl::StatusOr<SharedMemoryName> NameSharedMemory(const MemorySpan& memory) {
  SharedMemoryName name{.address = std::bit_cast<uint64_t>(memory.data)};
  WAYBILL_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, OpenDeviceOf({memory}));
  WAYBILL_ASSIGN_OR_RETURN(name.process, ThisProcess());
  WAYBILL_ASSIGN_OR_RETURN(const auto place, device->HandleOf(memory));
  name.handle = place.first;
  name.offset_bytes = place.second;
  return name;
}

absl::StatusOr<OpenedMemory> OpenedMemory::Open(std::shared_ptr<Device> device,
                                                const SharedMemoryName& name) {
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t process, ThisProcess());
  if (name.process == process) {
    return OpenedMemory(std::move(device), nullptr, std::bit_cast<std::byte*>(name.address));
  }
  WAYBILL_ASSIGN_OR_RETURN(void* const mapping, device->OpenHandle(name.handle));
  return OpenedMemory(std::move(device), mapping,
                      static_cast<std::byte*>(mapping) + name.offset_bytes);
}

OpenedMemory::~OpenedMemory() {
  if (mapping_ != nullptr) device_->CloseHandle(mapping_);
}

}  // namespace waybill
