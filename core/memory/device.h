// The GPU that memory is on.
#ifndef WAYBILL_CORE_MEMORY_DEVICE_H_
#define WAYBILL_CORE_MEMORY_DEVICE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/fabric/fabric.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/driver.h"

namespace waybill {

// What a GPU failed of is kInternal.
absl::Status ToStatus(const kernels::cuda::Outcome& outcome);

// Of those of the spans that are said to be a device's memory; null where none is.
//
// kUnavailable: no GPU, says what was looked for; kInvalidArgument: no device's memory, or that of
// several.
absl::StatusOr<std::shared_ptr<kernels::cuda::Device>> OpenDeviceOf(
    absl::Span<const MemorySpan> spans);

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_DEVICE_H_
