#include "core/fabric/local/region_table.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random_bits.h"
#include "core/base/status.h"

namespace waybill::local {

absl::StatusOr<Region> RegionTable::Register(const MemorySpan& memory, absl::string_view name) {
  if (memory.kind == MemoryKind::kDevice) {
    return absl::UnimplementedError(
        absl::StrCat("register \"", name, "\": the local fabric reaches host memory only"));
  }
  return Add({.memory = memory, .name = std::string(name), .pages = {}, .grants = {}});
}

absl::StatusOr<Region> RegionTable::Allocate(uint64_t size_bytes, absl::string_view name) {
  WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::Create(size_bytes, name));
  const MemorySpan memory{MemoryKind::kHost, pages.data(), size_bytes};
  return Add(
      {.memory = memory, .name = std::string(name), .pages = std::move(pages), .grants = {}});
}

absl::StatusOr<Region> RegionTable::Add(OwnRegion region) {
  WAYBILL_ASSIGN_OR_RETURN(region.key, RandomBits());
  const RegionId id{++last_id_};
  const MemorySpan memory = region.memory;
  regions_.emplace(id, std::move(region));
  return Region{id, memory};
}

absl::Status RegionTable::Release(RegionId id) {
  WAYBILL_RETURN_IF_ERROR(Find(id).status());
  regions_.erase(id);
  return absl::OkStatus();
}

absl::Status RegionTable::Renew(RegionId id, Contents contents) {
  WAYBILL_ASSIGN_OR_RETURN(OwnRegion * region, Find(id));
  WAYBILL_ASSIGN_OR_RETURN(region->key, RandomBits());
  region->grants.clear();
  if (region->pages) return region->pages->Renew(contents);
  if (contents == Contents::kZeroed) {
    std::memset(region->memory.data, 0, region->memory.size_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnRegion*> RegionTable::Find(RegionId id) {
  const auto region = regions_.find(id);
  if (region == regions_.end()) {
    return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id)));
  }
  return &region->second;
}

OwnRegion* RegionTable::FindGranted(uint64_t key, LaneId lane) {
  for (auto& [id, region] : regions_) {
    if (region.key == key) return region.grants.contains(lane) ? &region : nullptr;
  }
  return nullptr;
}

void RegionTable::ForgetLane(LaneId lane) {
  for (auto& [id, region] : regions_) region.grants.erase(lane);
}

}  // namespace waybill::local
