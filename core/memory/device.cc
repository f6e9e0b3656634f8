#include "core/memory/device.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {

absl::Status ToStatus(const kernels::cuda::Outcome& outcome) {
  return outcome.ok() ? absl::OkStatus() : absl::InternalError(outcome.reason());
}

absl::StatusOr<std::shared_ptr<kernels::cuda::Device>> OpenDeviceOf(
    absl::Span<const MemorySpan> spans) {
  int first = -1;
  for (const MemorySpan& span : spans) {
    if (span.kind != MemoryKind::kDevice || span.size_bytes == 0) continue;
    if (const auto gpu = kernels::cuda::FindGpu(); !gpu.ok()) {
      return absl::UnavailableError(gpu.reason());
    }
    int ordinal = -1;
    const auto found = kernels::cuda::FindDevice(span.data, span.size_bytes, ordinal);
    if (!found.ok()) return absl::InvalidArgumentError(found.reason());
    if (first < 0) first = ordinal;
    if (ordinal != first) {
      return absl::InvalidArgumentError(
          absl::StrCat("memory of GPU ", first, " and of GPU ", ordinal,
                       ": a rank's regions are on one; join with a rank for each"));
    }
  }
  if (first < 0) return nullptr;
  std::shared_ptr<kernels::cuda::Device> device;
  WAYBILL_RETURN_IF_ERROR(ToStatus(kernels::cuda::Device::Open(first, device)));
  return device;
}

}  // namespace waybill
