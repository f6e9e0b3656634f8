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
#include "core/change/largest_changes.h"
#include "core/fabric/available_memory.h"
#include "core/stage/cast_of.h"
#include "core/tensor/runs.h"
#include "kernels/copy.h"
#include "kernels/elements.h"

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

// Calls visit(offset_bytes, size_bytes), counted from the shard's first element, in the order of
// memory.
template <typename Visit>
void ForEachRunOf(const ShardView& shard, Visit visit) {
  std::vector<int64_t> extents;
  extents.reserve(shard.place.strides.size());
  for (int d = 0; d < shard.box.dimensions(); ++d) extents.push_back(shard.box.extent(d));
  ForEachRun(extents, shard.place.strides, ElementBytes(shard.format), visit);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Image>> Image::Create(Manifest manifest,
                                                     absl::Span<const MemorySpan> regions,
                                                     VersionsKept kept, uint32_t threads,
                                                     std::function<void()> wake) {
  std::unique_ptr<Image> image(new Image(std::move(manifest), threads, std::move(wake)));
  WAYBILL_RETURN_IF_ERROR(image->Reserve(regions, kept));
  return image;
}

Image::Image(Manifest manifest, uint32_t threads, std::function<void()> wake)
    : manifest_(std::move(manifest)),
      wake_(std::move(wake)),
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

void Image::BeginCopy(uint64_t version, const Selection& selection) {
  parts_.clear();
  unknown_tensors_.clear();
  const bool everything = selection.everything() || version_ == 0;
  if (!selection.everything()) selected_ = selection.SelectIn(manifest_, &unknown_tensors_);
  composition_ = everything ? 0 : selection.Compose(version_, composition_);
  at_most_ppm_ = selection.at_most_ppm;
  if (!everything) Divide();
  if (!before_.empty()) {
    std::swap(copies_, before_);
    version_before_ = std::exchange(version_, version);
  }
  ++copies_begun_;
  copying_ = true;
  ended_.store(false, std::memory_order_relaxed);
  pool_.Run(batch_, everything ? device_tasks() + static_cast<uint32_t>(host_pieces_.size())
                               : static_cast<uint32_t>(parts_.size()));
}

void Image::Divide() {
  for (uint32_t s = 0; s < manifest_.shard_count(); ++s) {
    const ShardView shard = manifest_.shard(s);
    const uint64_t size_bytes = manifest_.shard_bytes(s);
    bool contiguous = false;
    ForEachRunOf(shard,
                 [&](uint64_t, uint64_t run_bytes) { contiguous = run_bytes == size_bytes; });
    const uint64_t most = contiguous ? kPieceBytes : size_bytes;
    for (uint64_t begin = 0; begin < size_bytes; begin += most) {
      parts_.push_back({s, begin, std::min(begin + most, size_bytes)});
    }
  }
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
  if (!parts_.empty()) return TakeOver(parts_[task]);
  // The GPU's task comes first, since the GPU copies while threads do.
  if (task < device_tasks()) {
    device_status_ = CopyOnDevice();
    return;
  }
  const Piece& piece = host_pieces_[task - device_tasks()];
  kernels::Copy(To(piece), From(piece), piece.size_bytes, kernels::Stores::kStreaming);
  kernels::StreamFence();
}

// On any thread.
void Image::TakeOver(const ShardPart& part) {
  const ShardView shard = manifest_.shard(part.shard);
  const uint64_t width = ElementBytes(shard.format);
  const bool selected = selected_[shard.tensor_index];
  const bool whole = at_most_ppm_ == Selection::kMillion || shard.format.content != Content::kPlain;
  const std::optional<kernels::Wide> type = whole ? std::nullopt : WideOf(shard.format.dtype);
  std::optional<LargestChanges> changes;
  if (selected && type) changes.emplace();
  if (!selected) unselected_bytes_.fetch_add(part.end - part.begin, std::memory_order_relaxed);
  // Rounded down over the whole shard, so that short runs do not take more than their part.
  const auto most_before = [&](uint64_t elements) {
    return elements * at_most_ppm_ / Selection::kMillion;
  };
  uint64_t passed = 0, left_out = 0;  // Bytes of the shard, in the order of memory; elements.
  const auto take_run = [&](uint64_t offset, uint64_t run_bytes) {
    const uint64_t begin = std::max(passed, part.begin),
                   end = std::min(passed + run_bytes, part.end);
    offset += shard.place.offset_bytes - passed;  // Where a contiguous shard would begin.
    passed += run_bytes;
    const uint64_t most_bytes = changes ? LargestChanges::kBlockElements * width : kPieceBytes;
    for (uint64_t at = begin; at < end; at += most_bytes) {
      const uint64_t size = std::min(most_bytes, end - at);
      const uint32_t region = shard.place.region_index;
      std::byte* const to = copies_[region].data + offset + at;
      const std::byte* const newest = tensors_[region].data + offset + at;
      const std::byte* const before = before_[region].data + offset + at;
      kernels::Copy(to, selected && !changes ? newest : before, size,
                    changes ? kernels::Stores::kCached : kernels::Stores::kStreaming);
      if (!changes) continue;
      const uint64_t first = at / width, last = (at + size) / width;
      left_out +=
          changes->Take(*type, newest, to, last - first, most_before(last) - most_before(first));
    }
  };
  ForEachRunOf(shard, take_run);
  kernels::StreamFence();
  left_out_elements_.fetch_add(left_out, std::memory_order_relaxed);
}

absl::Status Image::CopyOnDevice() {
  for (const Piece& piece : device_pieces_) {
    WAYBILL_RETURN_IF_ERROR(device_->Copy(To(piece), From(piece), piece.size_bytes, stream_));
  }
  return device_->Finish(stream_);
}

}  // namespace waybill
