// How one end of the local fabric takes part with a GPU: copies between its memory, peers' GPU
// memory and host memory.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_GPU_READER_H_
#define WAYBILL_CORE_FABRIC_LOCAL_GPU_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

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

  // Queues a copy. One side is a device's memory at least.
  absl::Status Copy(std::byte* to, const std::byte* from, uint64_t size_bytes);
  bool has_queued() const { return has_queued_; }
  // Waits for what is queued.
  absl::Status Finish();

 private:
  std::shared_ptr<Device> receiver_;
  Stream stream_ = nullptr;
  bool has_queued_ = false;
};

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_GPU_READER_H_
