// SPDX-License-Identifier: Apache-2.0

// How one end of the local fabric takes part with a GPU: copies between its memory, peers' GPU
// memory and host memory.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_GPU_READER_H_
#define WAYBILL_CORE_FABRIC_LOCAL_GPU_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "core/base/unique_fd.h"
#include "core/device/device.h"
#include "core/device/shared_memory.h"
#include "core/fabric/fabric.h"

namespace waybill::local {

class GpuReader {
 public:
  GpuReader() = default;
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  // Peers' writes go to this memory, if it is a device's to that device. A process receives on one
  // device. kInvalidArgument: it is of another one.
  absl::Status ReceiveIn(const MemorySpan& memory);
  // The device on which it receives, or null.
  const std::shared_ptr<Device>& receiver() const { return receiver_; }
  // Return whether it can open a peer's memory.
  absl::Status Try(const SharedMemoryName& probe) const;
  absl::Status TryPart(const UniqueFd& file, uint64_t size_bytes) const;

  // Between which regions a copy goes, by their keys.
  struct Regions {
    uint64_t source = 0;
    uint64_t destination = 0;
    bool operator==(const Regions&) const = default;
  };
  // Queues a copy. One side is a device's memory at least. Copies between the same regions that go
  // on where the one before ended, on both sides, are one: what a copy costs the driver and the GPU
  // apart from its bytes is as much as 10 MiB of them take.
  absl::Status Copy(std::byte* to, const std::byte* from, uint64_t size_bytes, Regions regions);
  bool has_queued() const { return open_.has_value(); }
  // Waits for what is queued.
  absl::Status Finish();

 private:
  absl::Status QueueOpen();

  std::shared_ptr<Device> receiver_;
  Stream stream_ = nullptr;
  struct OpenCopy {
    std::byte* to;
    const std::byte* from;
    uint64_t size_bytes;
    Regions regions;
  };
  // The last copy since Finish(). The driver has not been given it yet, for the next one may go on
  // with it.
  std::optional<OpenCopy> open_;
};

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_GPU_READER_H_
