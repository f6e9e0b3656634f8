// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/kernel.h"

#include <atomic>

namespace waybill::kernels::cuda {
namespace {

std::atomic<Launcher> launcher{&LaunchOnGpu};

}  // namespace

void SetLauncherForTest(Launcher replacement) { launcher = replacement; }

Outcome Kernel::Queue(const Launch& launch, const void* arguments, Stream stream) {
  return launcher.load(std::memory_order_relaxed)(name_, handle_, launch, arguments, stream);
}

}  // namespace waybill::kernels::cuda
