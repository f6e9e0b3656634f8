// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/region_table.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random_bits.h"
#include "core/base/status.h"

namespace waybill {
namespace {

bool IsWithin(const MemorySpan& memory, uint64_t offset_bytes, uint64_t size_bytes) {
  return offset_bytes <= memory.size_bytes && size_bytes <= memory.size_bytes - offset_bytes;
}

absl::Status NotFound(RegionId id) {
  return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id)));
}

}  // namespace

absl::StatusOr<Region> RegionTable::Register(const MemorySpan& memory, absl::string_view name) {
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
  region.id = RegionId{++last_id_};
  by_key_[region.key] = region.id;
  const Region added{region.id, region.memory};
  regions_.emplace(region.id, std::move(region));
  return added;
}

absl::Status RegionTable::Release(RegionId id) {
  WAYBILL_ASSIGN_OR_RETURN(const OwnRegion* region, Find(id));
  by_key_.erase(region->key);
  regions_.erase(id);
  return absl::OkStatus();
}

absl::Status RegionTable::Renew(RegionId id, Contents contents) {
  WAYBILL_ASSIGN_OR_RETURN(OwnRegion * region, Find(id));
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t key, RandomBits());
  by_key_.erase(region->key);
  by_key_[key] = id;
  region->key = key;
  region->grants.clear();
  if (region->pages && renewal_ == Renewal::kPages) return region->pages->Renew(contents);
  if (contents == Contents::kZeroed) {
    std::memset(region->memory.data, 0, region->memory.size_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnRegion*> RegionTable::Find(RegionId id) {
  const auto region = regions_.find(id);
  if (region == regions_.end()) return NotFound(id);
  return &region->second;
}

absl::StatusOr<Destination> RegionTable::FindDestination(LaneId lane, uint64_t key,
                                                         uint64_t offset_bytes,
                                                         uint64_t size_bytes) const {
  const auto id = by_key_.find(key);
  const OwnRegion* region = id == by_key_.end() ? nullptr : &regions_.at(id->second);
  if (region == nullptr || !region->grants.contains(lane)) {
    return absl::PermissionDeniedError(
        "write by a key that is not granted on its lane, or was renewed since");
  }
  if (!IsWithin(region->memory, offset_bytes, size_bytes)) {
    return absl::OutOfRangeError(absl::StrCat("write of ", size_bytes, " bytes to offset ",
                                              offset_bytes, " of \"", region->name,
                                              "\", which has ", region->memory.size_bytes));
  }
  return Destination{region->id, region->memory.kind, region->memory.data + offset_bytes};
}

absl::StatusOr<const std::byte*> RegionTable::FindSource(const Write& write) const {
  const auto found = regions_.find(write.source);
  if (found == regions_.end()) return NotFound(write.source);
  const OwnRegion& region = found->second;
  if (!IsWithin(region.memory, write.source_offset_bytes, write.size_bytes)) {
    return absl::OutOfRangeError(absl::StrCat("write of ", write.size_bytes, " bytes from offset ",
                                              write.source_offset_bytes, " of \"", region.name,
                                              "\", which has ", region.memory.size_bytes));
  }
  return region.memory.data + write.source_offset_bytes;
}

void RegionTable::ForgetLane(LaneId lane) {
  for (auto& [id, region] : regions_) region.grants.erase(lane);
}

}  // namespace waybill
