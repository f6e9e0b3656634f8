// SPDX-License-Identifier: Apache-2.0

// AMD's GPUs behind the functions of the CUDA driver.

#ifndef KERNELS_CUDA_HIP_DRIVER_H_
#define KERNELS_CUDA_HIP_DRIVER_H_

#include <string>

#include "kernels/cuda/driver_functions.h"

namespace waybill::kernels::cuda {

// Opens HIP, fills the table, and points `image` to the kernels for its GPUs. Returns why it cannot
// be used, or "".
std::string LoadHip(DriverFunctions& functions, const void*& image);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_HIP_DRIVER_H_
