// SPDX-License-Identifier: Apache-2.0

// Memory of a GPU that other processes of this host read.
#ifndef WAYBILL_CORE_DEVICE_SHARED_MEMORY_H_
#define WAYBILL_CORE_DEVICE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/device/created_memory.h"
#include "core/device/device.h"
#include "core/fabric/fabric.h"

namespace waybill {

// Names memory of a GPU to the processes of its host, and is sent as it lies. It has no device
// number: each process counts devices in its own way.
struct SharedMemoryName {
  uint64_t key = 0;           // Random bits; 0: this names nothing.
  uint64_t offset_bytes = 0;  // Where the memory is in its first allocation.
  // The number of allocations of cuMemCreate() under the memory: their files have to come along.
  // 0: it is in the allocation of cuMemAlloc() that the handle is of.
  uint64_t part_count = 0;
  IpcHandle handle = {};

  bool names_something() const { return key != 0; }
};

// Memory that has a name, for as long as the object lives; the memory is allocated for longer than
// anybody has it open. Thread-safe.
class NamedMemory {
 public:
  // kUnimplemented: it was not allocated for other processes; kInternal: the driver refuses to
  // export it.
  static absl::StatusOr<NamedMemory> Create(const MemorySpan& memory);
  NamedMemory(NamedMemory&& other) noexcept
      : name_(std::exchange(other.name_, {})),
        device_(std::move(other.device_)),
        parts_(std::move(other.parts_)) {}
  NamedMemory& operator=(NamedMemory&&) = delete;
  ~NamedMemory();

  const SharedMemoryName& name() const { return name_; }
  // The allocations of cuMemCreate() under it, name().part_count of them. ExportPart() makes their
  // files, when somebody is to open the memory: there may be more than a process has descriptors.
  absl::Span<const CreatedPart> parts() const { return parts_; }
  absl::StatusOr<UniqueFd> ExportPart(size_t i) const {
    return waybill::ExportPart(*device_, parts_[i]);
  }

 private:
  NamedMemory(const SharedMemoryName& name, std::shared_ptr<Device> device)
      : name_(name), device_(std::move(device)) {}

  SharedMemoryName name_;
  std::shared_ptr<Device> device_;
  std::vector<CreatedPart> parts_;
};

// Such memory, as a device of this process reaches it for as long as the object lives.
class OpenedMemory {
 public:
  // Maps it, unless it is this process's own and has a handle. `parts`: what came along with the
  // name; they are not needed afterwards.
  //
  // kInternal: the driver refuses, as it does a handle between containers that have PID namespaces
  // of their own, and everything between devices that do not reach each other. kOutOfRange: it is
  // shorter than that.
  static absl::StatusOr<OpenedMemory> Open(std::shared_ptr<Device> device,
                                           const SharedMemoryName& name, uint64_t size_bytes,
                                           absl::Span<const PartHandle> parts = {});
  OpenedMemory(OpenedMemory&& other) noexcept
      : device_(std::move(other.device_)),
        mapping_(std::exchange(other.mapping_, nullptr)),
        mapped_parts_(std::move(other.mapped_parts_)),
        data_(other.data_) {}
  OpenedMemory& operator=(OpenedMemory&&) = delete;
  ~OpenedMemory();

  std::byte* data() const { return data_; }

 private:
  OpenedMemory(std::shared_ptr<Device> device, void* mapping)
      : device_(std::move(device)), mapping_(mapping) {}

  std::shared_ptr<Device> device_;
  void* mapping_;  // Of the whole allocation; null if it is this process's, or of parts.
  std::optional<MappedParts> mapped_parts_;
  std::byte* data_ = nullptr;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_DEVICE_SHARED_MEMORY_H_
