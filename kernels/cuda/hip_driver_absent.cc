// SPDX-License-Identifier: Apache-2.0

// In place of hip_driver.cc where the library is built without --config=hip.

#include "kernels/cuda/hip_driver.h"

namespace waybill::kernels::cuda {

std::string LoadHip(DriverFunctions&, const void*&) {
  return "for AMD's GPUs, Waybill has to be built with --config=hip";
}

}  // namespace waybill::kernels::cuda
