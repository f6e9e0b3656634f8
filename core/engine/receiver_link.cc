// SPDX-License-Identifier: Apache-2.0

#include "core/engine/receiver_link.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/kept_lanes.h"
#include "core/plan/plan_check.h"

namespace waybill {
namespace {

constexpr uint64_t kLeastRated = uint64_t{1} << 20;

// Returns the access to a descriptor's memory. Imports and maps each descriptor once.
absl::StatusOr<RegionAccess> OpenImport(Fabric& fabric, ReceiverLane& lane,
                                        const std::string& descriptor) {
  const auto known = lane.imports.find(descriptor);
  if (known != lane.imports.end()) return known->second;
  RegionAccess opened;
  WAYBILL_ASSIGN_OR_RETURN(opened.remote, fabric.Import(lane.id, descriptor));
  const absl::StatusOr<MemorySpan> mapping = fabric.Map(opened.remote);
  if (mapping.ok()) {
    opened.mapped = mapping->data;
    opened.size_bytes = mapping->size_bytes;
  } else if (!absl::IsUnimplemented(mapping.status())) {
    return mapping.status();
  }
  lane.imports.emplace(descriptor, opened);
  return opened;
}

absl::StatusOr<RegionAccess> OpenRegion(Fabric& fabric, ReceiverLane& lane,
                                        const RegionAddress& address) {
  WAYBILL_ASSIGN_OR_RETURN(RegionAccess access, OpenImport(fabric, lane, address.descriptor));
  access.offset_bytes = address.offset_bytes;
  if (access.mapped == nullptr) return access;
  if (address.offset_bytes > access.size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a region at byte ", address.offset_bytes,
                                                   " of memory of ", access.size_bytes, " bytes"));
  }
  access.mapped += address.offset_bytes;
  access.size_bytes -= address.offset_bytes;
  return access;
}

}  // namespace

absl::StatusOr<BufferAccess> OpenBuffer(Fabric& fabric, ReceiverLane& lane,
                                        const BufferAddress& address) {
  BufferAccess access;
  access.regions.reserve(address.regions.size());
  for (const RegionAddress& region : address.regions) {
    WAYBILL_ASSIGN_OR_RETURN(RegionAccess opened, OpenRegion(fabric, lane, region));
    access.regions.push_back(opened);
  }
  WAYBILL_ASSIGN_OR_RETURN(access.ledger, OpenRegion(fabric, lane, {address.ledger, 0}));
  return access;
}

void ReceiverLane::BeginTerm() {
  kept = true;
  buffers.clear();
  up = false;
}

bool ReceiverLink::up() const {
  return std::all_of(lanes.begin(), lanes.end(), [](const ReceiverLane& lane) { return lane.up; });
}

absl::Status ReceiverLink::CheckLaneCount(size_t there) const {
  if (there == lanes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("worker ", receiver, " has ", there, " lanes, the plan has ", lanes.size()));
}

absl::Status ReceiverLink::SetBufferAddress(uint32_t b, BufferAddress address) {
  if (b >= buffers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("address of buffer ", b, " of worker ", receiver,
                                                   ": it has ", buffers.size(), " buffers"));
  }
  ReceiverBuffer& buffer = buffers[b];
  if (address.regions.size() != buffer.address.regions.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("address of buffer ", b, " of worker ", receiver, ": it has ",
                     address.regions.size(), " regions, and had ", buffer.address.regions.size()));
  }
  if (address.generation <= buffer.address.generation) return absl::OkStatus();
  buffer = {.address = std::move(address), .to_open = true};
  return absl::OkStatus();
}

absl::StatusOr<BufferAccess> ReceiverLink::Open(Fabric& fabric, const RouteTable& routes,
                                                ReceiverLane& lane,
                                                const BufferAddress& address) const {
  WAYBILL_ASSIGN_OR_RETURN(BufferAccess access, OpenBuffer(fabric, lane, address));
  std::vector<uint64_t> region_bytes;
  region_bytes.reserve(access.regions.size());
  for (const RegionAccess& region : access.regions) region_bytes.push_back(region.size_bytes);
  WAYBILL_RETURN_IF_ERROR(CheckDestinations(routes, first_route, last_route, region_bytes));
  const uint64_t entries = uint64_t{first_ledger_entry} + route_count();
  if (entries > access.ledger.size_bytes / sizeof(LedgerEntry)) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", receiver, " has a ledger of ",
                                                   access.ledger.size_bytes, " bytes, the plan ",
                                                   entries, " entries"));
  }
  return access;
}

absl::Status ReceiverLink::OpenTarget(Fabric& fabric, const RouteTable& routes) {
  ReceiverBuffer& target = buffers[buffer_index];
  if (!target.to_open) return absl::OkStatus();
  for (ReceiverLane& lane : lanes) {
    WAYBILL_ASSIGN_OR_RETURN(lane.buffers[buffer_index],
                             Open(fabric, routes, lane, target.address));
    EndOldImports(fabric, lane);
  }
  target.to_open = false;
  return absl::OkStatus();
}

void ReceiverLink::CloseLanes(Fabric& fabric) const {
  for (const ReceiverLane& lane : lanes) (void)fabric.CloseLane(lane.id);
}

absl::Status ReceiverLink::OpenBuffers(Fabric& fabric, const RouteTable& routes,
                                       ReceiverLane& lane) const {
  for (const ReceiverBuffer& buffer : buffers) {
    BufferAccess& access = lane.buffers.emplace_back();
    if (buffer.to_open) continue;
    WAYBILL_ASSIGN_OR_RETURN(access, Open(fabric, routes, lane, buffer.address));
  }
  EndOldImports(fabric, lane);
  return absl::OkStatus();
}

void ReceiverLink::EndOldImports(Fabric& fabric, ReceiverLane& lane) const {
  std::set<std::string> needed;
  for (const ReceiverBuffer& buffer : buffers) {
    needed.insert(buffer.address.ledger);
    for (const RegionAddress& region : buffer.address.regions) needed.insert(region.descriptor);
  }
  std::erase_if(lane.imports, [&](const auto& import) {
    if (needed.contains(import.first)) return false;
    (void)fabric.EndImport(import.second.remote);
    return true;
  });
}

absl::StatusOr<ReceiverLink*> ReceiverLinks::Find(uint32_t receiver) {
  for (ReceiverLink& link : links) {
    if (link.receiver == receiver) return &link;
  }
  return absl::InvalidArgumentError(absl::StrCat("the plan has no route to worker ", receiver));
}

absl::StatusOr<std::vector<LaneOffer>> ReceiverLinks::OpenLanes(Fabric& fabric) {
  std::vector<LaneOffer> offers;
  for (ReceiverLink& link : links) {
    for (ReceiverLane& lane : link.lanes) {
      if (!lane.kept) {
        WAYBILL_ASSIGN_OR_RETURN(lane.id,
                                 fabric.OpenLane(absl::StrCat("worker ", link.receiver), lane.nic));
      }
      WAYBILL_ASSIGN_OR_RETURN(std::string address, fabric.LaneAddress(lane.id));
      offers.push_back({link.receiver, std::move(address)});
    }
  }
  return offers;
}

bool ReceiverLinks::up() const {
  return std::all_of(links.begin(), links.end(),
                     [](const ReceiverLink& link) { return link.up(); });
}

std::vector<LaneReport> ReceiverLinks::Report(const Fabric& fabric) const {
  std::vector<LaneReport> reports;
  for (const ReceiverLink& link : links) {
    for (const ReceiverLane& lane : link.lanes) {
      std::string path = fabric.DescribeLane(lane.id);
      if (!lane.why_staged.empty() && !lane.mapped()) {
        absl::StrAppend(&path, "; tensors are staged: ", lane.why_staged);
      }
      if (!lane.why_host_slots.empty()) {
        absl::StrAppend(&path, "; what is staged goes through host memory: ", lane.why_host_slots);
      }
      if (!lane.why_not_shared.empty()) {
        absl::StrAppend(&path,
                        "; what is staged is staged for each receiver: ", lane.why_not_shared);
      }
      reports.push_back({.peer = link.receiver, .path = std::move(path)});
    }
  }
  return reports;
}

std::vector<LaneRate> ReceiverLinks::Rates(const Fabric& fabric) const {
  std::vector<LaneRate> rates;
  for (const ReceiverLink& link : links) {
    for (const ReceiverLane& lane : link.lanes) {
      if (lane.posted_bytes < kLeastRated || lane.last_completion <= lane.first_post) continue;
      const std::string path = fabric.DescribeLane(lane.id);
      rates.push_back({.peer = link.receiver,
                       .fabric = path.substr(0, path.find(':')),
                       .bytes = lane.posted_bytes,
                       .time = lane.last_completion - lane.first_post});
    }
  }
  return rates;
}

std::pair<ReceiverLink*, ReceiverLane*> ReceiverLinks::FindLane(LaneId id) {
  for (ReceiverLink& link : links) {
    for (ReceiverLane& lane : link.lanes) {
      if (lane.id == id && !link.failed) return {&link, &lane};
    }
  }
  return {nullptr, nullptr};
}

absl::StatusOr<ReceiverLinks> MakeReceiverLinks(const RouteTable& routes, const ChunkList& list,
                                                const std::vector<PeerLanes>& lanes) {
  ReceiverLinks made;
  for (uint32_t r = 0; r < routes.size(); ++r) {
    if (made.links.empty() || made.links.back().receiver != routes.receiver(r)) {
      const auto index = static_cast<uint32_t>(made.links.size());
      ReceiverLink& link = made.links.emplace_back();
      link.index = index;
      link.receiver = routes.receiver(r);
      link.first_route = r;
    }
    made.links.back().last_route = r + 1;
  }
  uint32_t chunk = 0;
  for (ReceiverLink& link : made.links) {
    link.first_chunk = chunk;
    while (chunk < list.chunks.size() && list.chunks[chunk].receiver == link.receiver) ++chunk;
    link.last_chunk = chunk;
    WAYBILL_ASSIGN_OR_RETURN(const PeerLanes* planned, FindLanes(lanes, link.receiver));
    link.first_ledger_entry = planned->first_ledger_entry;
    for (const LanePath& path : planned->lanes) link.lanes.push_back({.nic = path.sender_nic});
    const std::vector<uint32_t> lane_of = ShareOut(
        absl::MakeConstSpan(list.chunks).subspan(link.first_chunk, chunk - link.first_chunk),
        planned->lanes);
    made.lane_of_chunk.insert(made.lane_of_chunk.end(), lane_of.begin(), lane_of.end());
    made.link_of_chunk.insert(made.link_of_chunk.end(), lane_of.size(), &link);
  }
  return made;
}

}  // namespace waybill
