// SPDX-License-Identifier: Apache-2.0

// How this package calls the driver.
#ifndef WAYBILL_CORE_DEVICE_DRIVER_CALLS_H_
#define WAYBILL_CORE_DEVICE_DRIVER_CALLS_H_

#include <cuda.h>

#include <bit>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/device/device.h"
#include "kernels/cuda/driver_functions.h"

namespace waybill {

using kernels::cuda::Driver;

inline absl::Status Check(const std::string& what, CUresult result) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(kernels::cuda::Explain(*Driver(), what, result));
}

inline CUdeviceptr AddressOf(const void* memory) { return std::bit_cast<CUdeviceptr>(memory); }

// Makes a call with the context current. Returns the first failure of the two.
template <typename Call>
absl::Status CallIn(CUcontext context, const std::string& what, const Call& call) {
  const UsingContext current(context);
  const auto made_current = static_cast<CUresult>(current.result());
  return Check(what, made_current == CUDA_SUCCESS ? call() : made_current);
}

// Reads an attribute of an address. The driver stores as many bytes as the attribute's type has,
// and stores an int where its documentation says boolean; HIP stores a bool there. A zeroed number
// of 64 bits holds each of them, since the machine is little-endian.
inline CUresult GetPointerAttribute(uint64_t& value, CUpointer_attribute attribute,
                                    CUdeviceptr address) {
  value = 0;
  return Driver()->cuPointerGetAttribute_fn(&value, attribute, address);
}

}  // namespace waybill

#endif  // WAYBILL_CORE_DEVICE_DRIVER_CALLS_H_
