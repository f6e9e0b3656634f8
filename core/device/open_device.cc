// SPDX-License-Identifier: Apache-2.0

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/gpu_remedy.h"
#include "core/device/gpu_survey.h"

namespace waybill {

absl::Status ToStatus(const kernels::cuda::Outcome& outcome) {
  return outcome.ok() ? absl::OkStatus() : absl::InternalError(outcome.reason());
}

absl::Status FindGpu() {
  const kernels::cuda::Outcome gpu = kernels::cuda::FindGpu();
  if (gpu.ok()) return absl::OkStatus();
  const std::string remedy = RemedyForNoGpu(gpu.reason());
  return absl::UnavailableError(remedy.empty() ? gpu.reason()
                                               : absl::StrCat(gpu.reason(), "; ", remedy));
}

absl::StatusOr<std::shared_ptr<Device>> OpenDeviceOf(
    absl::Span<const MemorySpan> spans, const std::function<std::string(size_t)>& name_of) {
  const auto name = [&](size_t i) {
    return name_of ? absl::StrCat("\"", name_of(i), "\"") : absl::StrCat("region ", i);
  };
  int first_ordinal = -1;
  size_t first = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].kind != MemoryKind::kDevice || spans[i].size_bytes == 0) continue;
    const absl::StatusOr<int> ordinal = FindDevice(spans[i].data, spans[i].size_bytes);
    if (!ordinal.ok()) return While(name(i), ordinal.status());
    if (first_ordinal < 0) {
      first_ordinal = *ordinal;
      first = i;
    }
    if (*ordinal != first_ordinal) {
      return absl::InvalidArgumentError(absl::StrCat(
          name(first), " is memory of ", NameOfGpu(first_ordinal), ", and ", name(i), " of ",
          NameOfGpu(*ordinal), ": a rank's regions are on one; join with a rank for each"));
    }
  }
  if (first_ordinal < 0) return nullptr;
  return Device::Open(first_ordinal);
}

PinnedMemory::PinnedMemory(std::shared_ptr<Device> device, absl::Span<std::byte> memory)
    : device_(std::move(device)) {
  if (device_->Pin(memory.data(), memory.size()).ok()) data_ = memory.data();
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) device_->Unpin(data_);
}

}  // namespace waybill
