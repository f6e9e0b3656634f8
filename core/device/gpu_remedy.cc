// SPDX-License-Identifier: Apache-2.0

#include "core/device/gpu_remedy.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

bool Exists(const std::string& path) {
  std::error_code none;
  return std::filesystem::exists(path, none);
}

}  // namespace

bool HasNvidiaDriver(const std::string& root) {
  return Exists(absl::StrCat(root, "/proc/driver/nvidia/version")) ||
         Exists(absl::StrCat(root, "/dev/nvidiactl"));
}

std::string RemedyForNoGpu(absl::string_view reason, const std::string& root) {
  if (!HasNvidiaDriver(root)) return "";
  // A container gets the driver's libraries from the host, by kind: "utility" brings nvidia-smi
  // only.
  if (absl::StrContains(reason, "libcuda.so.1: cannot open")) {
    return "the host has NVIDIA's driver, and its library is not in this container: start the "
           "container with NVIDIA_DRIVER_CAPABILITIES=compute,utility";
  }
  if (!absl::StrContains(reason, "cuInit")) return "";
  if (absl::StrContains(reason, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH") ||
      absl::StrContains(reason, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE")) {
    return "libcuda.so.1 is not that of the kernel's module: reboot after an upgrade of the "
           "driver, "
           "or take CUDA's folder \"compat\" out of LD_LIBRARY_PATH";
  }
  if (!Exists(absl::StrCat(root, "/dev/nvidia-uvm"))) {
    return "/dev/nvidia-uvm is not there: run \"nvidia-modprobe -u -c 0\" on the host, and give "
           "the "
           "device to the container";
  }
  if (absl::StrContains(reason, "CUDA_ERROR_NO_DEVICE")) {
    return "if the GPU is divided (MIG), make an instance with \"nvidia-smi mig -cgi\" and name it "
           "in "
           "CUDA_VISIBLE_DEVICES; if its compute mode is \"prohibited\", run \"nvidia-smi -c "
           "DEFAULT\"";
  }
  return "";
}

}  // namespace waybill
