// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/region_set.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/choice/tagged_texts.h"

namespace waybill::choice {

absl::StatusOr<Region> RegionSet::Register(const MemorySpan& memory, absl::string_view name) {
  return MakeByBest(name, [&](Fabric& member) { return member.Register(memory, name); });
}

// Whoever cannot read it goes on without: CheckRead() says so, and the caller stages.
absl::StatusOr<Region> RegionSet::RegisterSource(const MemorySpan& memory, absl::string_view name) {
  Entry entry{.memory = memory, .name = std::string(name)};
  entry.ids.resize(members_.size());
  entry.whys = unusable_;
  bool any = false;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!unusable_[i].ok()) continue;
    const absl::StatusOr<Region> region = members_[i]->RegisterSource(memory, name);
    entry.whys[i] = region.status();
    if (!region.ok()) continue;
    entry.ids[i] = region->id;
    entry.owner = i;
    any = true;
  }
  if (!any) return entry.whys.back();
  const RegionId id{++last_id_};
  entries_.emplace(id, std::move(entry));
  return Region{id, memory};
}

// The best one allocates: shared memory can be mapped by peers, and every other network takes it as
// it takes any memory.
absl::StatusOr<Region> RegionSet::Allocate(uint64_t size_bytes, absl::string_view name) {
  return MakeByBest(name, [&](Fabric& member) { return member.Allocate(size_bytes, name); });
}

absl::StatusOr<Region> RegionSet::MakeByBest(
    absl::string_view name, const std::function<absl::StatusOr<Region>(Fabric&)>& make) {
  Entry entry{.name = std::string(name)};
  entry.ids.resize(members_.size());
  std::vector<absl::Status> failures(members_.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!unusable_[i].ok()) continue;
    const absl::StatusOr<Region> region = make(*members_[i]);
    failures[i] = region.status();
    if (!region.ok()) continue;
    for (size_t before = 0; before < i; ++before) unusable_[before].Update(failures[before]);
    entry.owner = i;
    entry.ids[i] = region->id;
    entry.memory = region->memory;
    return Add(std::move(entry));
  }
  // Nobody has it: that is the memory's fault, or the caller's, and not the networks'.
  absl::Status status;
  for (const absl::Status& failure : failures) status.Update(failure);
  for (const absl::Status& why : unusable_) status.Update(why);
  return status;
}

absl::StatusOr<Region> RegionSet::Add(Entry entry) {
  RegisterWithOthers(entry);
  const RegionId id{++last_id_};
  const MemorySpan memory = entry.memory;
  entries_.emplace(id, std::move(entry));
  return Region{id, memory};
}

// A member that cannot take it (no more memory may be locked, a GPU's memory without a dma-buf)
// carries no lanes from now on; the others do.
void RegionSet::RegisterWithOthers(Entry& entry) {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (i == entry.owner || entry.ids[i] != RegionId::kNone || !unusable_[i].ok()) continue;
    const absl::StatusOr<Region> region = members_[i]->Register(entry.memory, entry.name);
    if (region.ok()) {
      entry.ids[i] = region->id;
    } else {
      unusable_[i] = region.status();
    }
  }
}

absl::Status RegionSet::Release(RegionId id) {
  WAYBILL_ASSIGN_OR_RETURN(Entry * entry, Find(id));
  // The owner last: the memory is its.
  absl::Status status;
  for (size_t i = members_.size(); i-- > 0;) {
    if (i == entry->owner || entry->ids[i] == RegionId::kNone) continue;
    status.Update(members_[i]->Release(entry->ids[i]));
  }
  status.Update(members_[entry->owner]->Release(entry->ids[entry->owner]));
  entries_.erase(id);
  return status;
}

absl::Status RegionSet::Renew(RegionId id, Contents contents) {
  WAYBILL_ASSIGN_OR_RETURN(Entry * entry, Find(id));
  // The others let go first: they hold the pages that the owner may exchange.
  for (size_t i = 0; i < members_.size(); ++i) {
    if (i == entry->owner || entry->ids[i] == RegionId::kNone) continue;
    WAYBILL_RETURN_IF_ERROR(members_[i]->Release(std::exchange(entry->ids[i], RegionId::kNone)));
  }
  WAYBILL_RETURN_IF_ERROR(members_[entry->owner]->Renew(entry->ids[entry->owner], contents));
  RegisterWithOthers(*entry);
  return absl::OkStatus();
}

absl::StatusOr<std::string> RegionSet::Describe(RegionId id) {
  WAYBILL_ASSIGN_OR_RETURN(const Entry* entry, Find(id));
  TaggedTexts texts;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (entry->ids[i] == RegionId::kNone) continue;
    WAYBILL_ASSIGN_OR_RETURN(std::string text, members_[i]->Describe(entry->ids[i]));
    texts.emplace_back(members_[i]->capabilities().name, std::move(text));
  }
  return Join(texts);
}

absl::StatusOr<RegionId> RegionSet::At(size_t member, RegionId id) const {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id)));
  }
  if (entry->second.ids[member] != RegionId::kNone) return entry->second.ids[member];
  const absl::Status& why =
      entry->second.whys.empty() ? unusable_[member] : entry->second.whys[member];
  return absl::FailedPreconditionError(
      absl::StrCat("\"", entry->second.name, "\" is not registered with ",
                   members_[member]->capabilities().name, ": ", why.message()));
}

absl::StatusOr<RegionSet::Entry*> RegionSet::Find(RegionId id) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id)));
  }
  return &entry->second;
}

}  // namespace waybill::choice
