// SPDX-License-Identifier: Apache-2.0

// What the GPUs that this process sees are, and what reaches their memory.
#ifndef WAYBILL_CORE_DEVICE_GPU_SURVEY_H_
#define WAYBILL_CORE_DEVICE_GPU_SURVEY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace waybill {

// Which kernels see what a NIC has written to the device's memory.
enum class InboundWrites : uint8_t {
  kOrdered,   // Those that are launched once the host has seen the write's completion.
  kFlushed,   // Those that are launched after Device::FlushInboundWrites().
  kReadBack,  // Those that are launched after Fabric::ReadBack().
};

// Which processes may use a GPU: "nvidia-smi -c" sets it.
enum class ComputeMode : uint8_t { kShared, kOneProcess, kNobody };

struct SurveyedGpu {
  int ordinal = 0;      // In this process: CUDA_VISIBLE_DEVICES renumbers them.
  std::string name;     // "NVIDIA H200".
  std::string uuid;     // "GPU-2f3a...": the same in every process and container.
  bool is_mig = false;  // It is an instance of a GPU that is divided; its UUID is "MIG-2f3a...".
  std::string pci_address;  // "0000:3b:00.0", as in /sys/bus/pci/devices.
  uint64_t memory_bytes = 0;
  ComputeMode compute_mode = ComputeMode::kShared;
  // A NIC can reach its memory by a dma-buf. Says nothing of the NIC, or of what lies between them.
  bool exports_dmabuf = false;
  // A NIC can reach its memory by the module nvidia-peermem, if that is loaded.
  bool has_peer_memory = false;
  // When kernels see what NICs have written there.
  InboundWrites inbound_writes = InboundWrites::kReadBack;
  // Another process of this host can map its memory: that of cuMemAlloc(), and that of
  // cuMemCreate().
  bool shares_memory = false;
  bool shares_created_memory = false;
};

// kUnavailable: there is no GPU.
absl::StatusOr<std::vector<SurveyedGpu>> SurveyGpus();

// Returns which kernels of a GPU see what NICs have written there.
InboundWrites InboundWritesOf(int ordinal);
// Returns its SurveyedGpu::uuid, or "" if the driver does not say.
std::string UuidOfGpu(int ordinal);
// Returns "GPU 0 (GPU-2f3a...)", for errors: numbers differ between processes.
std::string NameOfGpu(int ordinal);

}  // namespace waybill

#endif  // WAYBILL_CORE_DEVICE_GPU_SURVEY_H_
