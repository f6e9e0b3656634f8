// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/local/gpu_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/device/gpu_survey.h"

namespace waybill::local {
namespace {

absl::Status NoReceiver() {
  return absl::UnimplementedError("the other process does not receive in a GPU's memory");
}

}  // namespace

GpuReader::~GpuReader() {
  if (receiver_ != nullptr) receiver_->DestroyStream(stream_);
}

absl::Status GpuReader::ReceiveIn(const MemorySpan& memory) {
  WAYBILL_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, OpenDeviceOf({memory}));
  if (device == nullptr) return absl::OkStatus();
  if (receiver_ != nullptr) {
    if (receiver_->ordinal() == device->ordinal()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "it is memory of ", NameOfGpu(device->ordinal()), ", and the rank receives in that of ",
        NameOfGpu(receiver_->ordinal()), "; join with a rank for each GPU"));
  }
  WAYBILL_ASSIGN_OR_RETURN(stream_, device->MakeStream());
  receiver_ = std::move(device);
  return absl::OkStatus();
}

absl::Status GpuReader::Try(const SharedMemoryName& probe) const {
  if (receiver_ == nullptr) return NoReceiver();
  return OpenedMemory::Open(receiver_, probe, /*size_bytes=*/1).status();
}

absl::Status GpuReader::TryPart(const UniqueFd& file, uint64_t size_bytes) const {
  if (receiver_ == nullptr) return NoReceiver();
  WAYBILL_ASSIGN_OR_RETURN(const PartHandle part, PartHandle::Import(receiver_, file, size_bytes));
  return MappedParts::Map(receiver_, {&part, 1}).status();
}

absl::Status GpuReader::Copy(std::byte* to, const std::byte* from, uint64_t size_bytes,
                             Regions regions) {
  if (open_ && regions == open_->regions && to == open_->to + open_->size_bytes &&
      from == open_->from + open_->size_bytes) {
    open_->size_bytes += size_bytes;
    return absl::OkStatus();
  }
  absl::Status status = QueueOpen();
  open_ = {.to = to, .from = from, .size_bytes = size_bytes, .regions = regions};
  return status;
}

absl::Status GpuReader::QueueOpen() {
  const auto copy = std::exchange(open_, std::nullopt);
  return copy ? receiver_->Copy(copy->to, copy->from, copy->size_bytes, stream_) : absl::OkStatus();
}

absl::Status GpuReader::Finish() {
  absl::Status status = QueueOpen();
  status.Update(receiver_->Finish(stream_));
  return status;
}

}  // namespace waybill::local
