// SPDX-License-Identifier: Apache-2.0

// Says what to do on a host that has GPUs of NVIDIA of which a process can use none.
#ifndef WAYBILL_CORE_DEVICE_GPU_REMEDY_H_
#define WAYBILL_CORE_DEVICE_GPU_REMEDY_H_

#include <string>

#include "absl/strings/string_view.h"

namespace waybill {

// Returns true if the kernel has NVIDIA's driver. `root` is put before paths, for tests.
bool HasNvidiaDriver(const std::string& root = "");

// Returns what stands in the way and what to do, or "" if that is not known. `reason` is why no GPU
// was found, as kernels::cuda::FindGpu() says it.
std::string RemedyForNoGpu(absl::string_view reason, const std::string& root = "");

}  // namespace waybill

#endif  // WAYBILL_CORE_DEVICE_GPU_REMEDY_H_
