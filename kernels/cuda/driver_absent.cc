// SPDX-License-Identifier: Apache-2.0

// Replaces driver.cc in a build without a CUDA compiler.

#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernel.h"

namespace waybill::kernels::cuda {

Outcome FindGpu() {
  return Outcome::Failed("no GPU: built without CUDA (WAYBILL_CUDA=0); build without that setting");
}

Outcome PrepareContext() { return FindGpu(); }

Outcome LaunchOnGpu(const char*, std::atomic<CUkern_st*>&, const Launch&, const void*, Stream) {
  return FindGpu();
}

}  // namespace waybill::kernels::cuda
