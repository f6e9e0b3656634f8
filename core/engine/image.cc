// SPDX-License-Identifier: Apache-2.0

#include "core/engine/image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/narrow.h"
#include "core/base/status.h"
#include "core/fabric/available_memory.h"
#include "kernels/copy.h"

namespace waybill {
namespace {

constexpr uint64_t kPieceBytes = 4 << 20;
constexpr uint64_t kAlignment = 256;

// The pages are taken now, so that the first copy is as fast as the others.
absl::StatusOr<void*> MapHostMemory(uint64_t size_bytes) {
  const auto refused = [&](absl::string_view why) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "reserve ", size_bytes, " bytes of host memory for images of the tensors: ", why,
        "; without images, versions are sent from the tensors, which must not change meanwhile"));
  };
  const AvailableMemory available = FindAvailableMemory();
  if (available.size_bytes < size_bytes) {
    return refused(absl::StrCat(available.limit, " leaves ", available.size_bytes, " bytes"));
  }
  void* memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return refused(std::strerror(errno));
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Image>> Image::Create(absl::Span<const MemorySpan> regions,
                                                     VersionsKept kept, uint32_t threads,
                                                     std::function<void()> wake) {
  std::unique_ptr<Image> image(new Image(threads, std::move(wake)));
  WAYBILL_RETURN_IF_ERROR(image->Reserve(regions, kept));
  return image;
}

Image::Image(uint32_t threads, std::function<void()> wake)
    : wake_(std::move(wake)),
      batch_([this](uint32_t task) { Copy(task); },
             [this] {
               ended_.store(true, std::memory_order_release);
               wake_();
             }),
      pool_(threads) {}

Image::~Image() {
  Cancel();
  if (host_memory_ != nullptr) munmap(host_memory_, host_bytes_);
  if (device_ == nullptr) return;
  device_->DestroyStream(stream_);
  device_->Free(device_memory_);
}

absl::Status Image::Reserve(absl::Span<const MemorySpan> regions, VersionsKept kept) {
  const auto is_on_device = [](const MemorySpan& region) {
    return region.kind == MemoryKind::kDevice;
  };
  uint64_t device_bytes = 0;
  for (const MemorySpan& region : regions) {
    (is_on_device(region) ? device_bytes : host_bytes_) += RoundUp(region.size_bytes, kAlignment);
  }
  const uint64_t image_bytes = host_bytes_;
  if (kept == VersionsKept::kTwo) {
    if (device_bytes > 0) {
      return absl::UnimplementedError(
          "changes of tensors in GPU memory cannot be told yet: leave out the option `changes`");
    }
    host_bytes_ *= 2;
  }
  if (host_bytes_ > 0) {
    WAYBILL_ASSIGN_OR_RETURN(host_memory_, MapHostMemory(host_bytes_));
  }
  if (device_bytes > 0) {
    WAYBILL_ASSIGN_OR_RETURN(device_, OpenDeviceOf(regions));
    WAYBILL_ASSIGN_OR_RETURN(stream_, device_->MakeStream());
    absl::StatusOr<void*> memory = device_->Allocate(device_bytes);
    if (!memory.ok()) {
      return While(
          absl::StrCat("reserve ", device_bytes, " bytes of GPU memory for images of the tensors"),
          memory.status());
    }
    device_memory_ = *memory;
  }
  tensors_.assign(regions.begin(), regions.end());
  auto* host = static_cast<std::byte*>(host_memory_);
  auto* on_device = static_cast<std::byte*>(device_memory_);
  copies_.reserve(regions.size());
  for (const MemorySpan& region : regions) {
    const bool device = is_on_device(region);
    std::byte*& next = device ? on_device : host;
    copies_.push_back({.kind = region.kind,
                       .data = std::exchange(next, next + RoundUp(region.size_bytes, kAlignment)),
                       .size_bytes = region.size_bytes});
    if (kept == VersionsKept::kTwo) {
      before_.push_back(copies_.back());
      before_.back().data += image_bytes;
    }
    // The GPU copies a region at once, and threads share the regions of the host.
    const uint64_t most = device ? region.size_bytes : kPieceBytes;
    for (uint64_t done = 0; done < region.size_bytes; done += most) {
      (device ? device_pieces_ : host_pieces_)
          .push_back({static_cast<uint32_t>(copies_.size() - 1), done,
                      std::min(most, region.size_bytes - done)});
    }
  }
  return absl::OkStatus();
}

void Image::BeginCopy(uint64_t version) {
  if (!before_.empty()) {
    std::swap(copies_, before_);
    version_before_ = std::exchange(version_, version);
  }
  ++copies_begun_;
  copying_ = true;
  ended_.store(false, std::memory_order_relaxed);
  pool_.Run(batch_, device_tasks() + static_cast<uint32_t>(host_pieces_.size()));
}

std::optional<absl::Status> Image::TakeEnd() {
  if (!copying_ || !ended_.load(std::memory_order_acquire)) return std::nullopt;
  copying_ = false;
  if (!device_status_.ok()) ForgetVersions();
  return device_status_;
}

void Image::Cancel() {
  pool_.Cancel(batch_);
  if (std::exchange(copying_, false)) ForgetVersions();
}

// On any thread.
void Image::Copy(uint32_t task) {
  // The GPU's task comes first, since the GPU copies while threads do.
  if (task < device_tasks()) {
    device_status_ = CopyOnDevice();
    return;
  }
  const Piece& piece = host_pieces_[task - device_tasks()];
  kernels::Copy(To(piece), From(piece), piece.size_bytes, kernels::Stores::kStreaming);
  kernels::StreamFence();
}

absl::Status Image::CopyOnDevice() {
  for (const Piece& piece : device_pieces_) {
    WAYBILL_RETURN_IF_ERROR(device_->Copy(To(piece), From(piece), piece.size_bytes, stream_));
  }
  return device_->Finish(stream_);
}

}  // namespace waybill
