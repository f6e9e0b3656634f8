// SPDX-License-Identifier: Apache-2.0

// Memory of a GPU that was made by cuMemCreate(), as torch's expandable segments are: allocations
// that are mapped side by side. Other processes of this host map each allocation by a file.
#ifndef WAYBILL_CORE_DEVICE_CREATED_MEMORY_H_
#define WAYBILL_CORE_DEVICE_CREATED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/device/device.h"
#include "core/fabric/fabric.h"

namespace waybill {

// An allocation, where this process has mapped it.
struct CreatedPart {
  std::byte* begin = nullptr;
  uint64_t size_bytes = 0;
};

// Returns the allocations under the memory, in the order of their addresses. The first one may
// begin before the memory, and the last one end behind it.
//
// kUnimplemented: an allocation was not created for other processes; kFailedPrecondition: not all
// of it is memory of a device.
absl::StatusOr<std::vector<CreatedPart>> FindCreatedParts(const Device& device,
                                                          const MemorySpan& memory);

// Returns a file by which another process imports the allocation that is mapped there now.
// kInternal: the driver refuses.
absl::StatusOr<UniqueFd> ExportPart(const Device& device, const CreatedPart& part);

// An allocation of another process, or a new one. Its memory exists for as long as this object or a
// mapping does, also if the other process dies.
class PartHandle {
 public:
  // kInvalidArgument: there is no file; kInternal: the driver refuses.
  static absl::StatusOr<PartHandle> Import(std::shared_ptr<Device> device, const UniqueFd& file,
                                           uint64_t size_bytes);
  // Takes over a CUmemGenericAllocationHandle.
  PartHandle(std::shared_ptr<Device> device, unsigned long long handle, uint64_t size_bytes)
      : device_(std::move(device)), handle_(handle), size_bytes_(size_bytes) {}
  PartHandle(PartHandle&& other) noexcept
      : device_(std::move(other.device_)),
        handle_(std::exchange(other.handle_, 0)),
        size_bytes_(other.size_bytes_) {}
  PartHandle& operator=(PartHandle&&) = delete;
  ~PartHandle();

  unsigned long long handle() const { return handle_; }  // A CUmemGenericAllocationHandle.
  // The size that was said. The driver refuses to map more than there is.
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  std::shared_ptr<Device> device_;
  unsigned long long handle_;
  uint64_t size_bytes_;
};

// Such allocations, mapped side by side for a device of this process, as long as the object lives.
// Mapping and unmapping may wait for the device.
class MappedParts {
 public:
  MappedParts() = default;  // Maps nothing.
  // kInternal: the driver refuses, as it does for devices that cannot reach each other;
  // kOutOfRange: the sizes are impossible.
  static absl::StatusOr<MappedParts> Map(std::shared_ptr<Device> device,
                                         absl::Span<const PartHandle> parts);
  MappedParts(MappedParts&& other) noexcept
      : device_(std::move(other.device_)),
        bytes_(std::exchange(other.bytes_, {})),
        mapped_bytes_(std::move(other.mapped_bytes_)) {}
  MappedParts& operator=(MappedParts&&) = delete;
  ~MappedParts();

  absl::Span<std::byte> bytes() const { return bytes_; }

 private:
  MappedParts(std::shared_ptr<Device> device, absl::Span<std::byte> bytes)
      : device_(std::move(device)), bytes_(bytes) {}

  std::shared_ptr<Device> device_;
  absl::Span<std::byte> bytes_;         // The addresses that are reserved.
  std::vector<uint64_t> mapped_bytes_;  // The size of each mapping, in order.
};

// Creates memory of that size at least, which other processes can map by its file and NICs can
// reach. It may wait for the device.
//
// kUnimplemented: the device has no such memory; kInternal: the driver refuses.
absl::StatusOr<MappedParts> CreateForOthers(std::shared_ptr<Device> device, uint64_t size_bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_DEVICE_CREATED_MEMORY_H_
