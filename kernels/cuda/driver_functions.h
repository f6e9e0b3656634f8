// SPDX-License-Identifier: Apache-2.0

// The functions of the CUDA driver that this package and its tests call.

#ifndef KERNELS_CUDA_DRIVER_FUNCTIONS_H_
#define KERNELS_CUDA_DRIVER_FUNCTIONS_H_

#include <cuda.h>

#include <string>

#include "kernels/cuda/driver.h"

namespace waybill::kernels::cuda {

// <cuda.h> renames some of these to their newer versions, by macros; so do fields and symbols.
#define WAYBILL_DRIVER_FUNCTIONS(X) \
  X(cuCtxPopCurrent)                \
  X(cuCtxPushCurrent)               \
  X(cuCtxSetCurrent)                \
  X(cuDeviceGet)                    \
  X(cuDeviceGetAttribute)           \
  X(cuDeviceGetCount)               \
  X(cuDeviceGetName)                \
  X(cuDeviceGetPCIBusId)            \
  X(cuDeviceGetUuid)                \
  X(cuDevicePrimaryCtxRelease)      \
  X(cuDevicePrimaryCtxRetain)       \
  X(cuDeviceTotalMem)               \
  X(cuDriverGetVersion)             \
  X(cuEventCreate)                  \
  X(cuEventDestroy)                 \
  X(cuEventElapsedTime)             \
  X(cuEventQuery)                   \
  X(cuEventRecord)                  \
  X(cuEventSynchronize)             \
  X(cuFlushGPUDirectRDMAWrites)     \
  X(cuFuncLoad)                     \
  X(cuGetErrorName)                 \
  X(cuGetErrorString)               \
  X(cuInit)                         \
  X(cuIpcCloseMemHandle)            \
  X(cuIpcGetMemHandle)              \
  X(cuIpcOpenMemHandle)             \
  X(cuKernelGetFunction)            \
  X(cuLaunchKernel)                 \
  X(cuLibraryEnumerateKernels)      \
  X(cuLibraryGetKernel)             \
  X(cuLibraryGetKernelCount)        \
  X(cuLibraryLoadData)              \
  X(cuMemAddressFree)               \
  X(cuMemAddressReserve)            \
  X(cuMemAlloc)                     \
  X(cuMemCreate)                    \
  X(cuMemExportToShareableHandle)   \
  X(cuMemFree)                      \
  X(cuMemGetAddressRange)           \
  X(cuMemGetAllocationGranularity)  \
  X(cuMemGetHandleForAddressRange)  \
  X(cuMemHostRegister)              \
  X(cuMemHostUnregister)            \
  X(cuMemImportFromShareableHandle) \
  X(cuMemMap)                       \
  X(cuMemRelease)                   \
  X(cuMemRetainAllocationHandle)    \
  X(cuMemSetAccess)                 \
  X(cuMemUnmap)                     \
  X(cuMemcpyAsync)                  \
  X(cuMemcpyDtoH)                   \
  X(cuMemcpyHtoD)                   \
  X(cuMemsetD8Async)                \
  X(cuPointerGetAttribute)          \
  X(cuStreamAddCallback)            \
  X(cuStreamCreate)                 \
  X(cuStreamDestroy)                \
  X(cuStreamSynchronize)            \
  X(cuStreamWaitEvent)              \
  X(cuThreadExchangeStreamCaptureMode)

struct DriverFunctions {
#define WAYBILL_FIELD(name) decltype(&::name) name##_fn;
  WAYBILL_DRIVER_FUNCTIONS(WAYBILL_FIELD)
#undef WAYBILL_FIELD
};

// Returns null if FindGpu fails.
const DriverFunctions* Driver();

// Returns "<what>: CUDA_ERROR_INVALID_VALUE (invalid argument)". `functions` may lack all other
// functions.
std::string Explain(const DriverFunctions& functions, const std::string& what, CUresult result);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_DRIVER_FUNCTIONS_H_
