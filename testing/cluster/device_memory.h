// SPDX-License-Identifier: Apache-2.0

// Memory for ranks on a GPU.
#ifndef WAYBILL_TESTING_CLUSTER_DEVICE_MEMORY_H_
#define WAYBILL_TESTING_CLUSTER_DEVICE_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "testing/cluster/cluster.h"

namespace waybill {

class DeviceMemory final : public ClusterMemory {
 public:
  explicit DeviceMemory(int ordinal = 0);
  ~DeviceMemory() override;
  MemorySpan Allocate(size_t size_bytes) override;
  void Write(const MemorySpan& to, const std::byte* from) override;
  void Read(const MemorySpan& from, std::byte* to) override;

  const std::vector<void*>& all() const { return all_; }
  void FreeFirst();

 private:
  std::shared_ptr<Device> device_;
  Stream stream_ = nullptr;
  std::vector<void*> all_;
};

// Returns the same options with the trainers' tensors on the GPU.
inline ClusterOptions FromDevice(ClusterOptions options) {
  options.trainer_memory = std::make_shared<DeviceMemory>();
  options.trainer.stage_threads = 2;
  return options;
}

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_DEVICE_MEMORY_H_
