#include "core/engine/worker_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/device/gpu_survey.h"
#include "core/memory/arena.h"
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

absl::StatusOr<std::unique_ptr<WorkerMemory>> WorkerMemory::Create(
    Fabric* fabric, const Manifest* manifest, Mode mode,
    const std::vector<MemorySpan>& user_regions) {
  WAYBILL_RETURN_IF_ERROR(CheckUserRegions(*manifest, mode, user_regions));
  std::unique_ptr<WorkerMemory> memory(new WorkerMemory(fabric, manifest));
  if (mode == Mode::kInPlace && !user_regions.empty()) {
    WAYBILL_RETURN_IF_ERROR(memory->AddUserBuffer(user_regions));
  } else {
    WAYBILL_RETURN_IF_ERROR(memory->AddArena("weights"));
  }
  if (mode == Mode::kShadow) WAYBILL_RETURN_IF_ERROR(memory->AddArena("weights (shadow)"));
  // Hidden bytes are all written anew by the next update; those that are shown stay.
  memory->renewed_contents_ = mode == Mode::kInPlace ? Contents::kKept : Contents::kZeroed;
  if (mode == Mode::kShadowCopy) {
    memory->shown_.push_back(SpansOf(user_regions));
    WAYBILL_RETURN_IF_ERROR(memory->OpenDevice(user_regions));
    if (memory->device_ != nullptr) memory->Pin();
    WAYBILL_RETURN_IF_ERROR(memory->ZeroPadding(memory->shown_[0]));
  } else {
    for (const Buffer& buffer : memory->buffers_) memory->shown_.push_back(buffer.regions);
  }
  return memory;
}

WorkerMemory::~WorkerMemory() {
  if (device_ != nullptr) {
    Unpin();
    device_->DestroyStream(stream_);
  }
  for (const auto& [region, exported] : exported_) (void)fabric_.Release(exported.region);
  for (const Buffer& buffer : buffers_) {
    if (buffer.ledger.id != RegionId::kNone) (void)fabric_.Release(buffer.ledger.id);
  }
}

absl::Status WorkerMemory::OpenDevice(absl::Span<const MemorySpan> user_regions) {
  for (const MemorySpan& region : user_regions) user_kinds_.push_back(region.kind);
  WAYBILL_ASSIGN_OR_RETURN(device_, OpenDeviceOf(user_regions));
  if (device_ == nullptr) return absl::OkStatus();
  WAYBILL_ASSIGN_OR_RETURN(stream_, device_->MakeStream());
  return absl::OkStatus();
}

// Where it fails, copies to the device are slower.
void WorkerMemory::Pin() {
  const absl::Span<std::byte> arena = buffers_[0].arena;
  if (arena.empty() || !device_->Pin(arena.data(), arena.size()).ok()) return;
  pinned_ = arena;
}

void WorkerMemory::Unpin() {
  if (!pinned_.empty()) device_->Unpin(pinned_.data());
  pinned_ = {};
}

absl::Status WorkerMemory::CopyToShown(uint32_t region) {
  const absl::Span<std::byte> from = buffers_[0].regions[region];
  const absl::Span<std::byte> to = shown_[0][region];
  if (!OnDevice(region)) {
    kernels::Copy(to.data(), from.data(), from.size(), kernels::Stores::kStreaming);
    kernels::StreamFence();
    return absl::OkStatus();
  }
  absl::Status status = device_->Copy(to.data(), from.data(), from.size(), stream_);
  if (status.ok()) status = device_->Finish(stream_);
  return While(absl::StrCat("copy to region \"", manifest_.region_name(region), "\""), status);
}

absl::Status WorkerMemory::AddArena(absl::string_view name) {
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

absl::Status WorkerMemory::AddUserBuffer(absl::Span<const MemorySpan> user_regions) {
  Buffer buffer;
  buffer.regions = SpansOf(user_regions);
  WAYBILL_RETURN_IF_ERROR(OpenDevice(user_regions));
  receiving_device_ = device_;
  for (uint32_t i = 0; i < user_regions.size(); ++i) {
    WAYBILL_ASSIGN_OR_RETURN(const Registration registration, Register(user_regions[i], i));
    buffer.places.push_back(registration);
    if (std::find(buffer.fabric_regions.begin(), buffer.fabric_regions.end(),
                  registration.region) == buffer.fabric_regions.end()) {
      buffer.fabric_regions.push_back(registration.region);
    }
  }
  WAYBILL_RETURN_IF_ERROR(ZeroPadding(buffer.regions));
  buffers_.push_back(std::move(buffer));
  return absl::OkStatus();
}

absl::StatusOr<Registration> WorkerMemory::Register(const MemorySpan& memory, uint32_t region) {
  const std::string name(manifest_.region_name(region));
  if (memory.kind != MemoryKind::kDevice) return registrations_.Acquire(memory, name);
  const auto refuse = [&](const absl::Status& why) {
    return absl::FailedPreconditionError(
        absl::StrCat("mode in-place: region \"", name, "\" is memory of ",
                     NameOfGpu(device_->ordinal()), ": ", why.message(), "; use shadow-copy"));
  };
  if (device_->inbound_writes() == InboundWrites::kUnknown) {
    return refuse(absl::UnimplementedError(
        "its driver does not say when kernels see what a NIC has written"));
  }
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t pages, Device::PagesOf(memory));
  ExportedMemory exported = device_->Export(memory);
  // Not by the cache: pages that have moved need a registration of their own.
  const absl::StatusOr<Region> made = fabric_.Register(exported.span, name);
  if (!made.ok() && exported.why_none.ok()) return refuse(made.status());
  if (!made.ok()) {
    return refuse(absl::FailedPreconditionError(
        absl::StrCat(exported.why_none.message(), ", and ", made.status().message())));
  }
  exported_[region] = {made->id, pages, std::move(exported.dmabuf)};
  return Registration{made->id, 0};
}

absl::Status WorkerMemory::AbandonIfMoved(uint32_t buffer) {
  for (const auto& [region, exported] : exported_) {
    const absl::StatusOr<uint64_t> now = Device::PagesOf(SpanOf(buffers_[buffer], region));
    if (!now.ok()) {
      return While(absl::StrCat("region \"", manifest_.region_name(region), "\""), now.status());
    }
    if (*now != exported.pages) Abandon(buffer);
  }
  return absl::OkStatus();
}

// While the old registration lives, the new one has another key.
absl::Status WorkerMemory::RegisterMoved(Buffer& buffer) {
  for (auto& [region, exported] : exported_) {
    const MemorySpan memory = SpanOf(buffer, region);
    WAYBILL_ASSIGN_OR_RETURN(const uint64_t pages, Device::PagesOf(memory));
    if (pages == exported.pages) continue;
    const RegionId old = exported.region;
    WAYBILL_ASSIGN_OR_RETURN(buffer.places[region], Register(memory, region));
    std::replace(buffer.fabric_regions.begin(), buffer.fabric_regions.end(), old,
                 buffer.places[region].region);
    WAYBILL_RETURN_IF_ERROR(fabric_.Release(old));
  }
  return absl::OkStatus();
}

absl::Status WorkerMemory::MakeVisible() {
  if (receiving_device_ == nullptr) return absl::OkStatus();
  return receiving_device_->FlushInboundWrites();
}

absl::Status WorkerMemory::ZeroPadding(const RegionSpans& regions) {
  absl::Status status;
  for (uint32_t i = 0; i < manifest_.padding_count(); ++i) {
    const PaddingView padding = manifest_.padding(i);
    const uint32_t region = padding.place.region_index;
    std::byte* base = regions[region].data() + padding.place.offset_bytes;
    ForEachRun(padding.extents, padding.place.strides, padding.element_bytes,
               [&](uint64_t offset, uint64_t size) {
                 if (!OnDevice(region)) {
                   std::memset(base + offset, 0, size);
                 } else if (status.ok()) {
                   status = device_->Clear(base + offset, size, stream_);
                 }
               });
  }
  if (status.ok() && device_ != nullptr) status = device_->Finish(stream_);
  return While("zero the padding", status);
}

absl::Status WorkerMemory::AllocateLedgers(uint32_t entries) {
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

const LedgerEntry* WorkerMemory::ledger(uint32_t buffer) const {
  return reinterpret_cast<const LedgerEntry*>(buffers_[buffer].ledger.memory.data);
}

absl::Status WorkerMemory::Grant(LaneId lane, uint32_t buffer) {
  for (const RegionId region : buffers_[buffer].fabric_regions) {
    WAYBILL_RETURN_IF_ERROR(fabric_.Grant(lane, region));
  }
  return fabric_.Grant(lane, buffers_[buffer].ledger.id);
}

absl::StatusOr<BufferAddress> WorkerMemory::Describe(uint32_t buffer) {
  BufferAddress address;
  for (const Registration& place : buffers_[buffer].places) {
    WAYBILL_ASSIGN_OR_RETURN(std::string descriptor, fabric_.Describe(place.region));
    address.regions.push_back({std::move(descriptor), place.offset_bytes});
  }
  WAYBILL_ASSIGN_OR_RETURN(address.ledger, fabric_.Describe(buffers_[buffer].ledger.id));
  address.generation = buffers_[buffer].generation;
  return address;
}

absl::Status WorkerMemory::Renew(uint32_t index, absl::Span<const LaneId> lanes,
                                 Contents contents) {
  Buffer& buffer = buffers_[index];
  // The device knows the old pages by this address.
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
  buffer.abandoned = false;
  return absl::OkStatus();
}

}  // namespace waybill
