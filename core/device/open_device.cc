#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/gpu_survey.h"

namespace waybill {

absl::Status ToStatus(const kernels::cuda::Outcome& outcome) {
  return outcome.ok() ? absl::OkStatus() : absl::InternalError(outcome.reason());
}

absl::Status FindGpu() {
  const kernels::cuda::Outcome gpu = kernels::cuda::FindGpu();
  return gpu.ok() ? absl::OkStatus() : absl::UnavailableError(gpu.reason());
}

absl::StatusOr<std::shared_ptr<Device>> OpenDeviceOf(absl::Span<const MemorySpan> spans) {
  int first = -1;
  for (const MemorySpan& span : spans) {
    if (span.kind != MemoryKind::kDevice || span.size_bytes == 0) continue;
    WAYBILL_ASSIGN_OR_RETURN(const int ordinal, FindDevice(span.data, span.size_bytes));
    if (first < 0) first = ordinal;
    if (ordinal != first) {
      return absl::InvalidArgumentError(
          absl::StrCat("memory of ", NameOfGpu(first), " and of ", NameOfGpu(ordinal),
                       ": a rank's regions are on one; join with a rank for each"));
    }
  }
  if (first < 0) return nullptr;
  return Device::Open(first);
}

}  // namespace waybill
