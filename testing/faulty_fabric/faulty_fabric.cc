// SPDX-License-Identifier: Apache-2.0

#include "testing/faulty_fabric/faulty_fabric.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/progress.h"

namespace waybill {
namespace {

bool Matches(absl::string_view wanted, absl::string_view peer) {
  return wanted.empty() || wanted == peer;
}

bool AnyMatches(const std::set<std::string>& wanted, absl::string_view peer) {
  return std::any_of(wanted.begin(), wanted.end(),
                     [&](const std::string& w) { return Matches(w, peer); });
}

}  // namespace

void FaultyFabric::FailCall(FabricCall call, absl::string_view peer, uint64_t nth,
                            absl::Status status) {
  call_faults_.push_back({call, std::string(peer), nth, std::move(status)});
}

void FaultyFabric::CorruptWrite(absl::string_view peer, uint64_t nth) {
  write_faults_.push_back({std::string(peer), nth});
}

void FaultyFabric::DropImmediate(absl::string_view peer, uint64_t nth) {
  immediate_faults_.push_back({Fate::kDrop, std::string(peer), nth, 0});
}

void FaultyFabric::DuplicateImmediate(absl::string_view peer, uint64_t nth) {
  immediate_faults_.push_back({Fate::kDuplicate, std::string(peer), nth, 0});
}

void FaultyFabric::ReplaceImmediate(absl::string_view peer, uint64_t nth, uint32_t immediate) {
  immediate_faults_.push_back({Fate::kReplace, std::string(peer), nth, immediate});
}

void FaultyFabric::InjectImmediate(absl::string_view peer, uint32_t immediate) {
  ++faults_;
  ready_.push_back({FabricEvent::Kind::kImmediate, LaneTo(peer), 0, immediate});
}

size_t FaultyFabric::held_data_posts() const {
  size_t count = 0;
  for (const Held& held : held_posts_) {
    count += peers_.contains(held.lane) && !held.writes.empty() ? 1 : 0;
  }
  return count;
}

void FaultyFabric::LetPostsGo(absl::string_view peer) {
  held_peers_.erase(std::string(peer));
  std::deque<Held> held = std::exchange(held_posts_, {});
  for (Held& post : held) {
    if (!peers_.contains(post.lane)) continue;
    if (IsHeld(post.lane)) {
      held_posts_.push_back(std::move(post));
    } else {
      (void)Forward(post);
    }
  }
}

void FaultyFabric::LetImmediatesGo(absl::string_view peer) {
  held_immediates_.erase(std::string(peer));
  std::deque<FabricEvent> held = std::exchange(held_events_, {});
  for (const FabricEvent& event : held) {
    const bool still = AnyMatches(held_immediates_, PeerOf(event.lane));
    (still ? held_events_ : ready_).push_back(event);
  }
}

void FaultyFabric::KillLanes(absl::string_view peer, const absl::Status& status) {
  for (const auto& [lane, name] : peers_) {
    if (!Matches(peer, name) || killed_.contains(lane)) continue;
    ++faults_;
    (void)inner_->CloseLane(lane);
    killed_[lane] = status;
    ready_.push_back({.kind = FabricEvent::Kind::kFailed, .lane = lane});
  }
}

uint64_t FaultyFabric::count(FabricCall call) const {
  const auto count = counts_.find(call);
  return count == counts_.end() ? 0 : count->second;
}

LaneId FaultyFabric::LaneTo(absl::string_view peer) const {
  for (auto lane = peers_.rbegin(); lane != peers_.rend(); ++lane) {
    if (Matches(peer, lane->second)) return lane->first;
  }
  return LaneId::kNone;
}

MemorySpan FaultyFabric::MemoryOf(absl::string_view name) const {
  for (auto region = regions_.rbegin(); region != regions_.rend(); ++region) {
    if (region->second.name == name) return region->second.memory;
  }
  return {};
}

absl::Status FaultyFabric::Meet(FabricCall call, absl::string_view peer) {
  ++counts_[call];
  absl::Status met;
  for (auto fault = call_faults_.begin(); fault != call_faults_.end();) {
    if (fault->call == call && Matches(fault->peer, peer) && --fault->left == 0) {
      ++faults_;
      met = fault->status;
      fault = call_faults_.erase(fault);
    } else {
      ++fault;
    }
  }
  return met;
}

std::string FaultyFabric::PeerOf(LaneId lane) const {
  const auto peer = peers_.find(lane);
  return peer == peers_.end() ? "" : peer->second;
}

bool FaultyFabric::IsHeld(LaneId lane) const { return AnyMatches(held_peers_, PeerOf(lane)); }

absl::StatusOr<Region> FaultyFabric::Register(const MemorySpan& memory, absl::string_view name) {
  absl::StatusOr<Region> region = inner_->Register(memory, name);
  if (region.ok()) regions_[region->id] = {std::string(name), region->memory};
  return region;
}

absl::StatusOr<Region> FaultyFabric::RegisterSource(const MemorySpan& memory,
                                                    absl::string_view name) {
  absl::StatusOr<Region> region = inner_->RegisterSource(memory, name);
  if (region.ok()) regions_[region->id] = {std::string(name), region->memory};
  return region;
}

absl::StatusOr<Region> FaultyFabric::Allocate(uint64_t size_bytes, absl::string_view name) {
  if (absl::Status met = Meet(FabricCall::kAllocate, name); !met.ok()) return met;
  absl::StatusOr<Region> region = inner_->Allocate(size_bytes, name);
  if (region.ok()) regions_[region->id] = {std::string(name), region->memory};
  return region;
}

absl::Status FaultyFabric::Release(RegionId region) {
  regions_.erase(region);
  return inner_->Release(region);
}

absl::Status FaultyFabric::Renew(RegionId region, Contents contents) {
  return inner_->Renew(region, contents);
}

absl::StatusOr<std::string> FaultyFabric::Describe(RegionId region) {
  return inner_->Describe(region);
}

absl::Status FaultyFabric::Grant(LaneId lane, RegionId region) {
  if (absl::Status met = Meet(FabricCall::kGrant, PeerOf(lane)); !met.ok()) return met;
  if (const auto killed = killed_.find(lane); killed != killed_.end()) return killed->second;
  return inner_->Grant(lane, region);
}

absl::StatusOr<RemoteRegionId> FaultyFabric::Import(LaneId lane, absl::string_view descriptor) {
  if (absl::Status met = Meet(FabricCall::kImport, PeerOf(lane)); !met.ok()) return met;
  if (const auto killed = killed_.find(lane); killed != killed_.end()) return killed->second;
  absl::StatusOr<RemoteRegionId> region = inner_->Import(lane, descriptor);
  if (region.ok()) imports_[*region] = lane;
  return region;
}

absl::StatusOr<MemorySpan> FaultyFabric::Map(RemoteRegionId region) {
  const auto import = imports_.find(region);
  const std::string peer = import == imports_.end() ? "" : PeerOf(import->second);
  if (absl::Status met = Meet(FabricCall::kMap, peer); !met.ok()) return met;
  WAYBILL_ASSIGN_OR_RETURN(const MemorySpan mapped, inner_->Map(region));
  // The same pages once more, since killing the lane closes it in the fabric below.
  void* again = mremap(mapped.data, 0, mapped.size_bytes, MREMAP_MAYMOVE);
  if (again == MAP_FAILED) return absl::ErrnoToStatus(errno, "map a region once more");
  MemorySpan kept = mapped;
  kept.data = static_cast<std::byte*>(again);
  mappings_.emplace(region, Mapping(kept.data, {kept.size_bytes}));
  return kept;
}

absl::Status FaultyFabric::EndImport(RemoteRegionId region) {
  mappings_.erase(region);
  const auto import = imports_.extract(region);
  if (!import.empty() && killed_.contains(import.mapped())) return absl::OkStatus();
  return inner_->EndImport(region);
}

void FaultyFabric::Unmap::operator()(std::byte* data) const { munmap(data, size_bytes); }

absl::StatusOr<LaneId> FaultyFabric::OpenLane(absl::string_view peer, absl::string_view nic) {
  absl::StatusOr<LaneId> lane = inner_->OpenLane(peer, nic);
  if (lane.ok()) peers_[*lane] = std::string(peer);
  return lane;
}

absl::StatusOr<std::string> FaultyFabric::LaneAddress(LaneId lane) const {
  return inner_->LaneAddress(lane);
}

absl::Status FaultyFabric::ConnectLane(LaneId lane, absl::string_view peer_address) {
  if (absl::Status met = Meet(FabricCall::kConnect, PeerOf(lane)); !met.ok()) return met;
  return inner_->ConnectLane(lane, peer_address);
}

absl::Status FaultyFabric::CloseLane(LaneId lane) {
  peers_.erase(lane);
  const auto of_lane = [lane](const auto& e) { return e.lane == lane; };
  std::erase_if(ready_, of_lane);
  std::erase_if(held_events_, of_lane);
  std::erase_if(held_posts_, of_lane);
  std::erase_if(imports_, [&](const auto& import) {
    if (import.second == lane) mappings_.erase(import.first);
    return import.second == lane;
  });
  return killed_.erase(lane) > 0 ? absl::OkStatus() : inner_->CloseLane(lane);
}

absl::Status FaultyFabric::LaneStatus(LaneId lane) const {
  const auto killed = killed_.find(lane);
  return killed == killed_.end() ? inner_->LaneStatus(lane) : killed->second;
}

absl::Status FaultyFabric::Post(LaneId lane, absl::Span<const Write> writes,
                                std::optional<uint32_t> immediate, uint64_t token) {
  if (absl::Status met = Meet(FabricCall::kPost, PeerOf(lane)); !met.ok()) return met;
  Held post{lane, {writes.begin(), writes.end()}, immediate, token};
  if (!IsHeld(lane)) return Forward(post);
  ++faults_;
  held_posts_.push_back(std::move(post));
  return absl::OkStatus();
}

absl::Status FaultyFabric::Signal(LaneId lane, uint32_t immediate) {
  if (absl::Status met = Meet(FabricCall::kSignal, PeerOf(lane)); !met.ok()) return met;
  Held signal{lane, {}, immediate, std::nullopt};
  if (!IsHeld(lane)) return Forward(signal);
  ++faults_;
  held_posts_.push_back(std::move(signal));
  return absl::OkStatus();
}

absl::Status FaultyFabric::Forward(const Held& held) {
  if (const auto killed = killed_.find(held.lane); killed != killed_.end()) return killed->second;
  if (!held.token) return inner_->Signal(held.lane, *held.immediate);
  if (write_faults_.empty()) {
    return inner_->Post(held.lane, held.writes, held.immediate, *held.token);
  }
  std::vector<Write> writes = held.writes;
  for (Write& write : writes) {
    if (write.size_bytes == 0) continue;
    bool corrupt = false;  // By any number of faults: two must not mend each other.
    for (auto fault = write_faults_.begin(); fault != write_faults_.end();) {
      if (!Matches(fault->peer, PeerOf(held.lane)) || --fault->left > 0) {
        ++fault;
        continue;
      }
      fault = write_faults_.erase(fault);
      corrupt = true;
    }
    if (!corrupt) continue;
    if (absl::Status status = Corrupt(held.lane, write); !status.ok()) return status;
  }
  return inner_->Post(held.lane, writes, held.immediate, *held.token);
}

absl::Status FaultyFabric::Corrupt(LaneId lane, Write& write) {
  const absl::StatusOr<Region> copy = inner_->Allocate(write.size_bytes, "corrupted write");
  if (!copy.ok()) return copy.status();
  const MemorySpan& source = regions_.at(write.source).memory;
  std::memcpy(copy->memory.data, source.data + write.source_offset_bytes, write.size_bytes);
  copy->memory.data[write.size_bytes / 2] ^= std::byte{1};
  write.source = copy->id;
  write.source_offset_bytes = 0;
  ++faults_;
  return inner_->Grant(lane, copy->id);
}

void FaultyFabric::TakeImmediate(const FabricEvent& event) {
  const std::string peer = PeerOf(event.lane);
  FabricEvent told = event;
  int copies = 1;
  for (auto fault = immediate_faults_.begin(); fault != immediate_faults_.end();) {
    if (!Matches(fault->peer, peer) || --fault->left > 0) {
      ++fault;
      continue;
    }
    ++faults_;
    if (fault->fate == Fate::kDrop) copies = 0;
    if (fault->fate == Fate::kDuplicate) copies = 2;
    if (fault->fate == Fate::kReplace) told.immediate = fault->replacement;
    fault = immediate_faults_.erase(fault);
  }
  const bool held = AnyMatches(held_immediates_, peer);
  for (int i = 0; i < copies; ++i) (held ? held_events_ : ready_).push_back(told);
}

void FaultyFabric::Poll(std::vector<FabricEvent>& events) {
  if (std::exchange(skip_poll_, false)) return;
  polled_.clear();
  inner_->Poll(polled_);
  for (const FabricEvent& event : polled_) {
    if (event.kind == FabricEvent::Kind::kImmediate) {
      TakeImmediate(event);
    } else {
      ready_.push_back(event);
    }
  }
  const size_t before = events.size();
  HandOut(ready_, events);
  polled_events_ += events.size() - before;
}

void FaultyFabric::Wait(absl::Time deadline) {
  if (ready_.empty()) inner_->Wait(deadline);
}

}  // namespace waybill
