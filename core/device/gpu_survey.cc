// SPDX-License-Identifier: Apache-2.0

#include "core/device/gpu_survey.h"

#include <cuda.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "kernels/cuda/driver_functions.h"

namespace waybill {
namespace {

using kernels::cuda::Driver;

// The driver has no attribute that says so. The name is "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
bool IsMig(CUdevice device) {
  char name[128] = {};
  return Driver()->cuDeviceGetName_fn(name, sizeof(name), device) == CUDA_SUCCESS &&
         absl::StrContains(name, " MIG ");
}

// As `nvidia-smi -L` or `rocminfo` writes it, and CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES
// takes it.
std::string UuidText(const CUuuid& uuid, bool is_mig) {
  const absl::string_view bytes(uuid.bytes, sizeof(uuid.bytes));
  // AMD's are digits already.
  if (absl::c_all_of(bytes, absl::ascii_isxdigit)) return absl::StrCat("GPU-", bytes);
  std::string text = is_mig ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppendFormat(&text, "%s%02x", dash ? "-" : "", static_cast<uint8_t>(uuid.bytes[i]));
  }
  return text;
}

// An attribute that the driver does not know is one that the device does not have.
int AttributeOf(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  const CUresult result = Driver()->cuDeviceGetAttribute_fn(&value, attribute, device);
  return result == CUDA_SUCCESS ? value : 0;
}
bool Has(CUdevice device, CUdevice_attribute attribute) {
  return AttributeOf(device, attribute) != 0;
}

absl::StatusOr<SurveyedGpu> Survey(int ordinal) {
  SurveyedGpu gpu{.ordinal = ordinal};
  CUdevice device = 0;
  char name[128] = {};
  char pci[32] = {};
  CUuuid uuid{};
  size_t memory_bytes = 0;
  CUresult result = Driver()->cuDeviceGet_fn(&device, ordinal);
  if (result == CUDA_SUCCESS) result = Driver()->cuDeviceGetName_fn(name, sizeof(name), device);
  if (result == CUDA_SUCCESS) result = Driver()->cuDeviceGetPCIBusId_fn(pci, sizeof(pci), device);
  if (result == CUDA_SUCCESS) result = Driver()->cuDeviceGetUuid_fn(&uuid, device);
  if (result == CUDA_SUCCESS) result = Driver()->cuDeviceTotalMem_fn(&memory_bytes, device);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(
        kernels::cuda::Explain(*Driver(), absl::StrCat("examine GPU ", ordinal), result));
  }
  gpu.name = name;
  gpu.is_mig = IsMig(device);
  gpu.uuid = UuidText(uuid, gpu.is_mig);
  gpu.pci_address = absl::AsciiStrToLower(pci);
  gpu.memory_bytes = memory_bytes;
  const int mode = AttributeOf(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
  gpu.compute_mode = mode == CU_COMPUTEMODE_PROHIBITED ? ComputeMode::kNobody
                     : mode == CU_COMPUTEMODE_DEFAULT  ? ComputeMode::kShared
                                                       : ComputeMode::kOneProcess;
  gpu.exports_dmabuf = Has(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  gpu.has_peer_memory = Has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
  gpu.inbound_writes = InboundWritesOf(ordinal);
  gpu.shares_memory = Has(device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
  gpu.shares_created_memory =
      Has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  return gpu;
}

}  // namespace

InboundWrites InboundWritesOf(int ordinal) {
  CUdevice device = 0;
  if (Driver()->cuDeviceGet_fn(&device, ordinal) != CUDA_SUCCESS) return InboundWrites::kReadBack;
  // Such a device shares page tables with the host, as on Grace, and NICs can reach it in two ways.
  // The driver says that it orders writes, and leaves the order between the two to the user.
  // Source: the description of cuFlushGPUDirectRDMAWrites() in CUDA's documentation.
  if (Has(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)) {
    return InboundWrites::kReadBack;
  }
  // Other GPUs copy from it, too, if its worker relays over the local fabric.
  if (AttributeOf(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
      CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES) {
    return InboundWrites::kOrdered;
  }
  const int options = AttributeOf(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  return (options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0 ? InboundWrites::kFlushed
                                                                      : InboundWrites::kReadBack;
}

std::string UuidOfGpu(int ordinal) {
  CUdevice device = 0;
  CUuuid uuid{};
  const bool known = FindGpu().ok() && Driver()->cuDeviceGet_fn(&device, ordinal) == CUDA_SUCCESS &&
                     Driver()->cuDeviceGetUuid_fn(&uuid, device) == CUDA_SUCCESS;
  return known ? UuidText(uuid, IsMig(device)) : "";
}

std::string NameOfGpu(int ordinal) {
  const std::string uuid = UuidOfGpu(ordinal);
  return uuid.empty() ? absl::StrCat("GPU ", ordinal)
                      : absl::StrCat("GPU ", ordinal, " (", uuid, ")");
}

absl::StatusOr<std::vector<SurveyedGpu>> SurveyGpus() {
  WAYBILL_RETURN_IF_ERROR(FindGpu());
  int count = 0;
  std::vector<SurveyedGpu> gpus;
  if (const CUresult result = Driver()->cuDeviceGetCount_fn(&count); result != CUDA_SUCCESS) {
    return absl::InternalError(kernels::cuda::Explain(*Driver(), "count the GPUs", result));
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    WAYBILL_ASSIGN_OR_RETURN(SurveyedGpu gpu, Survey(ordinal));
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace waybill
