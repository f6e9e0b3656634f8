// Memory of a GPU that other processes of this host read.
#ifndef WAYBILL_CORE_DEVICE_SHARED_MEMORY_H_
#define WAYBILL_CORE_DEVICE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "core/device/device.h"
#include "core/fabric/fabric.h"

namespace waybill {

// Names memory of a GPU to the processes of its host, and is sent as it lies. It has no device
// number: each process counts devices in its own way.
struct SharedMemoryName {
  uint64_t process = 0;       // Random bits of the process that has it; 0: this names nothing.
  uint64_t address = 0;       // Where it is there.
  uint64_t offset_bytes = 0;  // Where it is in the allocation that the handle is of.
  IpcHandle handle = {};

  bool names_something() const { return process != 0; }
};

// Names memory of a device, for as long as it is allocated. Nobody has it open any more when it is
// freed: that is its owner's to see to.
//
// kUnimplemented: as Device::HandleOf().
absl::StatusOr<SharedMemoryName> NameSharedMemory(const MemorySpan& memory);

// Such memory, as a device of this process reaches it for as long as the object lives.
class OpenedMemory {
 public:
  // Maps it, unless it is this process's own.
  //
  // kInternal: the driver refuses, as it does between containers that have PID namespaces of their
  // own, and between devices that do not reach each other.
  static absl::StatusOr<OpenedMemory> Open(std::shared_ptr<Device> device,
                                           const SharedMemoryName& name);
  OpenedMemory(OpenedMemory&& other) noexcept
      : device_(std::move(other.device_)),
        mapping_(std::exchange(other.mapping_, nullptr)),
        data_(other.data_) {}
  OpenedMemory& operator=(OpenedMemory&&) = delete;
  ~OpenedMemory();

  std::byte* data() const { return data_; }

 private:
  OpenedMemory(std::shared_ptr<Device> device, void* mapping, std::byte* data)
      : device_(std::move(device)), mapping_(mapping), data_(data) {}

  std::shared_ptr<Device> device_;
  void* mapping_;  // Of the whole allocation; null if it is this process's.
  std::byte* data_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_DEVICE_SHARED_MEMORY_H_
