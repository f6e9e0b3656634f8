#include "core/device/gpu_survey.h"

#include <cuda.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "kernels/cuda/driver_functions.h"

namespace waybill {
namespace {

using kernels::cuda::Driver;

// As `nvidia-smi -L` writes it.
std::string UuidText(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppendFormat(&text, "%s%02x", dash ? "-" : "", static_cast<uint8_t>(uuid.bytes[i]));
  }
  return text;
}

// An attribute that the driver does not know is one that the device does not have.
bool Has(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return Driver()->cuDeviceGetAttribute_fn(&value, attribute, device) == CUDA_SUCCESS && value != 0;
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
  gpu.uuid = UuidText(uuid);
  gpu.pci_address = absl::AsciiStrToLower(pci);
  gpu.memory_bytes = memory_bytes;
  gpu.exports_dmabuf = Has(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  gpu.has_peer_memory = Has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
  gpu.shares_memory = Has(device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
  return gpu;
}

}  // namespace

std::string NameOfGpu(int ordinal) {
  std::string name = absl::StrCat("GPU ", ordinal);
  CUdevice device = 0;
  CUuuid uuid{};
  if (FindGpu().ok() && Driver()->cuDeviceGet_fn(&device, ordinal) == CUDA_SUCCESS &&
      Driver()->cuDeviceGetUuid_fn(&uuid, device) == CUDA_SUCCESS) {
    absl::StrAppend(&name, " (", UuidText(uuid), ")");
  }
  return name;
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
