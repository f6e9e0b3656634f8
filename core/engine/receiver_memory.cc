// SPDX-License-Identifier: Apache-2.0

#include "core/engine/receiver_memory.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/device/gpu_survey.h"
#include "core/memory/arena.h"
#include "core/memory/neighbours.h"
#include "core/tensor/runs.h"
#include "kernels/copy.h"

namespace waybill {
namespace {

absl::Status CheckUserRegions(const Manifest& manifest, Mode mode,
                              absl::Span<const MemorySpan> user_regions) {
  if (mode == Mode::kShadow && !user_regions.empty()) {
    return absl::InvalidArgumentError(
        "mode shadow: the engine's own memory cannot be swapped for another buffer; use "
        "shadow-copy or in-place, or let Waybill allocate");
  }
  if (mode == Mode::kShadowCopy && user_regions.empty()) {
    return absl::InvalidArgumentError("mode shadow-copy: there is no memory to copy into");
  }
  if (!user_regions.empty() && user_regions.size() != manifest.region_count()) {
    return absl::InvalidArgumentError(absl::StrCat(user_regions.size(), " pieces of memory for ",
                                                   manifest.region_count(), " regions"));
  }
  for (uint32_t i = 0; i < user_regions.size(); ++i) {
    if (user_regions[i].size_bytes != manifest.region_bytes(i)) {
      return absl::InvalidArgumentError(
          absl::StrCat("region \"", manifest.region_name(i), "\" has ", manifest.region_bytes(i),
                       " bytes, its memory has ", user_regions[i].size_bytes));
    }
  }
  return absl::OkStatus();
}

RegionSpans SpansOf(absl::Span<const MemorySpan> memory) {
  RegionSpans spans;
  for (const MemorySpan& m : memory) spans.emplace_back(m.data, m.size_bytes);
  return spans;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReceiverMemory>> ReceiverMemory::Create(
    Fabric* fabric, const Manifest* manifest, Mode mode,
    const std::vector<MemorySpan>& user_regions, std::optional<int> arena_gpu) {
  WAYBILL_RETURN_IF_ERROR(CheckUserRegions(*manifest, mode, user_regions));
  std::unique_ptr<ReceiverMemory> memory(new ReceiverMemory(fabric, manifest));
  WAYBILL_RETURN_IF_ERROR(memory->OpenDevice(user_regions, arena_gpu));
  std::vector<MemoryKind> user_kinds;
  user_kinds.reserve(user_regions.size());
  for (const MemorySpan& region : user_regions) user_kinds.push_back(region.kind);
  if (mode == Mode::kInPlace && !user_regions.empty()) {
    if (arena_gpu) {
      return absl::InvalidArgumentError(
          "mode in-place with the engine's memory: there are no buffers that a GPU could have");
    }
    memory->kinds_ = memory->shown_kinds_ = std::move(user_kinds);
    WAYBILL_RETURN_IF_ERROR(memory->AddUserBuffer(user_regions));
  } else {
    memory->kinds_.assign(manifest->region_count(),
                          arena_gpu ? MemoryKind::kDevice : MemoryKind::kHost);
    memory->shown_kinds_ = mode == Mode::kShadowCopy ? std::move(user_kinds) : memory->kinds_;
    WAYBILL_RETURN_IF_ERROR(
        memory->AddArenas(mode == Mode::kShadow ? 2 : 1, arena_gpu.has_value()));
  }
  // The next update writes all bytes of a hidden buffer, so its contents need not be kept; shown
  // bytes must be.
  const bool keeps = mode == Mode::kInPlace || memory->receiving_device_ != nullptr;
  memory->renewed_contents_ = keeps ? Contents::kKept : Contents::kZeroed;
  if (mode == Mode::kShadowCopy) {
    memory->shown_.push_back(SpansOf(user_regions));
    WAYBILL_RETURN_IF_ERROR(memory->ZeroPadding(memory->shown_[0]));
  } else {
    for (const Buffer& buffer : memory->buffers_) memory->shown_.push_back(buffer.regions);
  }
  return memory;
}

ReceiverMemory::~ReceiverMemory() {
  if (device_ != nullptr) {
    Unpin();
    device_->DestroyStream(stream_);
  }
  for (Buffer& buffer : buffers_) {
    if (buffer.ledger.id != RegionId::kNone) (void)fabric_.Release(buffer.ledger.id);
    const bool on_gpu = buffer.targets != nullptr && !buffer.arena.empty();
    buffer.targets.reset();
    if (on_gpu) device_->Free(buffer.arena.data());
  }
}

uint64_t ReceiverMemory::arena_bytes(MemoryKind kind) const {
  if ((kind == MemoryKind::kDevice) != (receiving_device_ != nullptr)) return 0;
  uint64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.arena.size();
  return bytes;
}

absl::Status ReceiverMemory::OpenDevice(absl::Span<const MemorySpan> user_regions,
                                        std::optional<int> arena_gpu) {
  WAYBILL_ASSIGN_OR_RETURN(device_, OpenDeviceOf(user_regions));
  if (arena_gpu && device_ == nullptr) {
    WAYBILL_ASSIGN_OR_RETURN(device_, Device::Open(*arena_gpu));
  }
  if (device_ == nullptr) return absl::OkStatus();
  if (arena_gpu && device_->ordinal() != *arena_gpu) {
    return absl::InvalidArgumentError(
        absl::StrCat("the engine's memory is of ", NameOfGpu(device_->ordinal()),
                     ", and the buffers are to be of ", NameOfGpu(*arena_gpu),
                     ": a rank's memory is on one; give the engine's, or none"));
  }
  WAYBILL_ASSIGN_OR_RETURN(stream_, device_->MakeStream());
  return absl::OkStatus();
}

absl::Status ReceiverMemory::AddArenas(uint32_t count, bool on_gpu) {
  for (uint32_t i = 0; i < count; ++i) {
    const absl::string_view name = i == 0 ? "weights" : "weights (shadow)";
    WAYBILL_RETURN_IF_ERROR(on_gpu ? AddArenaOnGpu(name) : AddArena(name));
  }
  if (on_gpu) {
    receiving_device_ = device_;
  } else if (device_ != nullptr) {
    Pin();
  }
  return absl::OkStatus();
}

// If pinning fails, copies to the device are slower.
void ReceiverMemory::Pin() {
  const absl::Span<std::byte> arena = buffers_[0].arena;
  if (arena.empty() || !device_->Pin(arena.data(), arena.size()).ok()) return;
  pinned_ = arena;
}

void ReceiverMemory::Unpin() {
  if (!pinned_.empty()) device_->Unpin(pinned_.data());
  pinned_ = {};
}

absl::Status ReceiverMemory::CopyToShown(uint32_t first, uint32_t last) {
  absl::Status status;
  bool queued = false;
  for (uint32_t region = first; region < last && status.ok(); ++region) {
    const absl::Span<std::byte> from = buffers_[0].regions[region];
    const absl::Span<std::byte> to = shown_[0][region];
    if (kinds_[region] == MemoryKind::kHost && shown_kinds_[region] == MemoryKind::kHost) {
      kernels::Copy(to.data(), from.data(), from.size(), kernels::Stores::kStreaming);
      continue;
    }
    queued = true;
    status = While(absl::StrCat("copy to region \"", manifest_.region_name(region), "\""),
                   device_->Copy(to.data(), from.data(), from.size(), stream_));
  }
  kernels::StreamFence();
  if (!queued) return status;
  status.Update(While(absl::StrCat("copy to regions \"", manifest_.region_name(first), "\" to \"",
                                   manifest_.region_name(last - 1), "\""),
                      device_->Finish(stream_)));
  return status;
}

absl::Status ReceiverMemory::AddArena(absl::string_view name) {
  WAYBILL_ASSIGN_OR_RETURN(const Arena arena, AllocateArena(&fabric_, manifest_, name));
  Buffer buffer;
  for (uint32_t i = 0; i < manifest_.region_count(); ++i) {
    buffer.regions.emplace_back(arena.region.memory.data + arena.layout.offsets[i],
                                manifest_.region_bytes(i));
    buffer.places.push_back({arena.region.id, arena.layout.offsets[i]});
  }
  if (arena.region.id != RegionId::kNone) buffer.fabric_regions.push_back(arena.region.id);
  buffer.arena = {arena.region.memory.data, arena.region.memory.size_bytes};
  buffers_.push_back(std::move(buffer));
  return absl::OkStatus();
}

absl::Status ReceiverMemory::AddArenaOnGpu(absl::string_view name) {
  const ArenaLayout layout = ArenaLayout::For(manifest_);
  // Store the memory before any call can fail, so that the destructor frees it.
  Buffer& buffer = buffers_.emplace_back();
  if (layout.size_bytes > 0) {
    absl::StatusOr<void*> allocated = device_->Allocate(layout.size_bytes);
    if (!allocated.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("allocate \"", name, "\", ", layout.size_bytes, " bytes of ",
                       NameOfGpu(device_->ordinal()), ": ", allocated.status().message()));
    }
    buffer.arena = {static_cast<std::byte*>(*allocated), layout.size_bytes};
    WAYBILL_RETURN_IF_ERROR(device_->Clear(*allocated, layout.size_bytes, stream_));
    WAYBILL_RETURN_IF_ERROR(device_->Finish(stream_));
  }
  buffer.targets = std::make_unique<DeviceTargets>(&fabric_, device_);
  RegionId arena = RegionId::kNone;
  if (!buffer.arena.empty()) {
    const absl::StatusOr<RegionId> made = buffer.targets->Add({.kind = MemoryKind::kDevice,
                                                               .data = buffer.arena.data(),
                                                               .size_bytes = buffer.arena.size()},
                                                              std::string(name));
    if (!made.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("buffers on ", NameOfGpu(device_->ordinal()), ": ", made.status().message(),
                       "; without a GPU for them, updates arrive in host memory"));
    }
    arena = *made;
    buffer.fabric_regions.push_back(arena);
  }
  for (uint32_t i = 0; i < manifest_.region_count(); ++i) {
    buffer.regions.push_back(buffer.arena.subspan(layout.offsets[i], manifest_.region_bytes(i)));
    buffer.places.push_back({arena, layout.offsets[i]});
  }
  return absl::OkStatus();
}

absl::Status ReceiverMemory::AddUserBuffer(absl::Span<const MemorySpan> user_regions) {
  Buffer& buffer = buffers_.emplace_back();
  buffer.regions = SpansOf(user_regions);
  if (device_ != nullptr) buffer.targets = std::make_unique<DeviceTargets>(&fabric_, device_);
  receiving_device_ = device_;
  // Each fabric region is granted on each lane. GPU memory is exported per allocation, and an
  // allocation gets new pages as a whole.
  const JoinedMemory joined =
      JoinNeighbours(user_regions, [this](const MemorySpan& before, const MemorySpan& after) {
        const absl::StatusOr<uint64_t> pages = device_->PagesOf(before);
        return pages.ok() && device_->PagesOf(after) == pages;
      });
  std::vector<Registration> registrations;
  absl::flat_hash_set<RegionId> known;
  for (const JoinedMemory::Range& range : joined.ranges) {
    std::string name(manifest_.region_name(range.first));
    if (range.count > 1) absl::StrAppend(&name, " and ", range.count - 1, " behind it");
    WAYBILL_ASSIGN_OR_RETURN(const Registration registration,
                             RegisterUserRegion(buffer, range.memory, name));
    registrations.push_back(registration);
    if (known.insert(registration.region).second) {
      buffer.fabric_regions.push_back(registration.region);
    }
  }
  for (const JoinedMemory::Place& place : joined.places) {
    const Registration& in = registrations[place.range];
    buffer.places.push_back({in.region, in.offset_bytes + place.offset_bytes});
  }
  return ZeroPadding(buffer.regions);
}

absl::StatusOr<Registration> ReceiverMemory::RegisterUserRegion(Buffer& buffer,
                                                                const MemorySpan& memory,
                                                                absl::string_view name) {
  if (memory.kind != MemoryKind::kDevice) return registrations_.Acquire(memory, name);
  const absl::StatusOr<RegionId> made = buffer.targets->Add(memory, std::string(name));
  if (made.ok()) return Registration{*made, 0};
  return absl::FailedPreconditionError(absl::StrCat(
      "mode in-place: region \"", name, "\" is memory of ", NameOfGpu(device_->ordinal()), ": ",
      made.status().message(), "; use shadow-copy"));
}

absl::Status ReceiverMemory::MayReceive() const {
  if (!paused_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the worker is paused, and takes no update until it is resumed");
}

absl::StatusOr<bool> ReceiverMemory::HasMoved(uint32_t buffer) {
  WAYBILL_RETURN_IF_ERROR(MayReceive());
  if (padding_lost_) WAYBILL_RETURN_IF_ERROR(ZeroPadding(shown_[0]));
  padding_lost_ = false;
  if (buffers_[buffer].targets == nullptr) return false;
  return buffers_[buffer].targets->HaveMoved();
}

// Releases only the inference engine's memory: nothing unmaps memory that Waybill allocated.
void ReceiverMemory::Pause() {
  paused_ = true;
  for (Buffer& buffer : buffers_) {
    if (buffer.targets != nullptr && buffer.arena.empty()) buffer.targets->Release();
  }
}

absl::Status ReceiverMemory::RegisterMoved(Buffer& buffer) {
  if (buffer.targets == nullptr) return absl::OkStatus();
  return buffer.targets->Renew([&](RegionId old_region, RegionId new_region) {
    std::replace(buffer.fabric_regions.begin(), buffer.fabric_regions.end(), old_region,
                 new_region);
    for (Registration& place : buffer.places) {
      if (place.region == old_region) place.region = new_region;
    }
  });
}

absl::Status ReceiverMemory::ZeroPadding(const RegionSpans& regions) {
  absl::Status status;
  for (uint32_t i = 0; i < manifest_.padding_count(); ++i) {
    const PaddingView padding = manifest_.padding(i);
    const uint32_t region = padding.place.region_index;
    std::byte* base = regions[region].data() + padding.place.offset_bytes;
    ForEachRun(padding.extents, padding.place.strides, padding.element_bytes,
               [&](uint64_t offset, uint64_t size) {
                 if (shown_kinds_[region] != MemoryKind::kDevice) {
                   std::memset(base + offset, 0, size);
                 } else if (status.ok()) {
                   status = device_->Clear(base + offset, size, stream_);
                 }
               });
  }
  if (status.ok() && device_ != nullptr) status = device_->Finish(stream_);
  return While("zero the padding", status);
}

absl::Status ReceiverMemory::AllocateLedgers(uint32_t entries) {
  for (Buffer& buffer : buffers_) {
    if (buffer.ledger.id != RegionId::kNone) {
      const RegionId last = std::exchange(buffer.ledger, {}).id;
      WAYBILL_RETURN_IF_ERROR(fabric_.Release(last));
    }
    const uint64_t size_bytes = std::max<uint64_t>(entries, 1) * sizeof(LedgerEntry);
    WAYBILL_ASSIGN_OR_RETURN(buffer.ledger, fabric_.Allocate(size_bytes, "ledger"));
  }
  return absl::OkStatus();
}

const LedgerEntry* ReceiverMemory::ledger(uint32_t buffer) const {
  return reinterpret_cast<const LedgerEntry*>(buffers_[buffer].ledger.memory.data);
}

absl::Status ReceiverMemory::Grant(LaneId lane, uint32_t buffer) {
  if (!IsReachable(buffers_[buffer])) return absl::OkStatus();  // Renew() grants it.
  for (const RegionId region : buffers_[buffer].fabric_regions) {
    WAYBILL_RETURN_IF_ERROR(fabric_.Grant(lane, region));
  }
  return fabric_.Grant(lane, buffers_[buffer].ledger.id);
}

absl::StatusOr<BufferAddress> ReceiverMemory::Describe(uint32_t buffer) {
  BufferAddress address{.generation = buffers_[buffer].generation};
  if (!IsReachable(buffers_[buffer])) {
    address.regions.resize(buffers_[buffer].places.size());
    return address;
  }
  for (const Registration& place : buffers_[buffer].places) {
    WAYBILL_ASSIGN_OR_RETURN(std::string descriptor, fabric_.Describe(place.region));
    address.regions.push_back({std::move(descriptor), place.offset_bytes});
  }
  WAYBILL_ASSIGN_OR_RETURN(address.ledger, fabric_.Describe(buffers_[buffer].ledger.id));
  return address;
}

absl::Status ReceiverMemory::Renew(uint32_t index, absl::Span<const LaneId> lanes,
                                   Contents contents) {
  Buffer& buffer = buffers_[index];
  // The device has pinned the old pages at this address.
  const bool pinned = !pinned_.empty();
  if (pinned) Unpin();
  WAYBILL_RETURN_IF_ERROR(RegisterMoved(buffer));
  for (const RegionId region : buffer.fabric_regions) {
    WAYBILL_RETURN_IF_ERROR(fabric_.Renew(region, contents));
  }
  if (pinned) Pin();
  WAYBILL_RETURN_IF_ERROR(fabric_.Renew(buffer.ledger.id, Contents::kZeroed));
  ++buffer.generation;
  for (const LaneId lane : lanes) WAYBILL_RETURN_IF_ERROR(Grant(lane, index));
  return absl::OkStatus();
}

}  // namespace waybill
