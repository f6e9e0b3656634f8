#include "core/engine/trainer_peer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {
namespace {

class Opener {
 public:
  Opener(Fabric& fabric, LaneId lane) : fabric_(fabric), lane_(lane) {}

  absl::StatusOr<RegionAccess> Open(const RegionAddress& address) {
    // Regions of one arena share a descriptor: imported and mapped once.
    auto [known, is_new] = opened_.try_emplace(address.descriptor);
    if (is_new) {
      WAYBILL_ASSIGN_OR_RETURN(known->second.remote, fabric_.Import(lane_, address.descriptor));
      const absl::StatusOr<MemorySpan> mapping = fabric_.Map(known->second.remote);
      if (mapping.ok()) {
        known->second.mapped = mapping->data;
      } else if (!absl::IsUnimplemented(mapping.status())) {
        return mapping.status();
      }
    }
    RegionAccess access = known->second;
    access.offset_bytes = address.offset_bytes;
    if (access.mapped != nullptr) access.mapped += address.offset_bytes;
    return access;
  }

 private:
  Fabric& fabric_;
  LaneId lane_;
  absl::flat_hash_map<std::string, RegionAccess> opened_;
};

}  // namespace

absl::StatusOr<BufferAccess> OpenBuffer(Fabric& fabric, LaneId lane, const BufferAddress& address) {
  Opener opener(fabric, lane);
  BufferAccess access;
  access.regions.reserve(address.regions.size());
  for (const RegionAddress& region : address.regions) {
    WAYBILL_ASSIGN_OR_RETURN(RegionAccess opened, opener.Open(region));
    access.regions.push_back(opened);
  }
  WAYBILL_ASSIGN_OR_RETURN(access.ledger, opener.Open({address.ledger, 0}));
  return access;
}

bool TrainerPeer::up() const {
  return std::all_of(lanes.begin(), lanes.end(), [](const TrainerLane& lane) { return lane.up; });
}

uint32_t TrainerPeer::posts_outstanding() const {
  uint32_t posts = 0;
  for (const TrainerLane& lane : lanes) posts += lane.posts_outstanding;
  return posts;
}

absl::Status TrainerPeer::CheckLaneCount(size_t there) const {
  if (there == lanes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("worker ", worker, " has ", there, " lanes, the plan has ", lanes.size()));
}

void TrainerPeer::BeginUpdate() {
  ledger_sent = 0;
  direct_left.store(0, std::memory_order_relaxed);
  for (TrainerLane& lane : lanes) {
    lane.posted_left = 0;
    lane.ended = false;
  }
}

absl::Status TrainerPeer::OpenRenewed(Fabric& fabric) {
  for (TrainerLane& lane : lanes) {
    WAYBILL_ASSIGN_OR_RETURN(lane.buffers[buffer_index], OpenBuffer(fabric, lane.id, *to_open));
  }
  to_open.reset();
  return absl::OkStatus();
}

void TrainerPeer::CloseLanes(Fabric& fabric) const {
  for (const TrainerLane& lane : lanes) (void)fabric.CloseLane(lane.id);
}

absl::Status TrainerPeer::OpenBuffers(Fabric& fabric, TrainerLane& lane) const {
  for (const BufferAddress& address : addresses) {
    WAYBILL_ASSIGN_OR_RETURN(BufferAccess access, OpenBuffer(fabric, lane.id, address));
    lane.buffers.push_back(std::move(access));
  }
  return absl::OkStatus();
}

bool TrainerPeer::all_sent() const {
  return direct_left.load(std::memory_order_acquire) == 0 &&
         std::all_of(lanes.begin(), lanes.end(),
                     [](const TrainerLane& lane) { return lane.posted_left == 0; });
}

bool TrainerPeer::done() const {
  return ledger_sent == route_count() &&
         std::all_of(lanes.begin(), lanes.end(), [](const TrainerLane& lane) {
           return lane.ended && lane.posts_outstanding == 0;
         });
}

absl::StatusOr<TrainerPeer*> Peers::Find(uint32_t worker) {
  for (TrainerPeer& peer : peers) {
    if (peer.worker == worker) return &peer;
  }
  return absl::InvalidArgumentError(absl::StrCat("the plan has no route to worker ", worker));
}

absl::StatusOr<std::vector<LaneOffer>> Peers::OpenLanes(Fabric& fabric) {
  std::vector<LaneOffer> offers;
  for (TrainerPeer& peer : peers) {
    for (TrainerLane& lane : peer.lanes) {
      WAYBILL_ASSIGN_OR_RETURN(lane.id,
                               fabric.OpenLane(absl::StrCat("worker ", peer.worker), lane.nic));
      WAYBILL_ASSIGN_OR_RETURN(std::string address, fabric.LaneAddress(lane.id));
      offers.push_back({peer.worker, std::move(address)});
    }
  }
  return offers;
}

bool Peers::up() const {
  return std::all_of(peers.begin(), peers.end(), [](const TrainerPeer& peer) { return peer.up(); });
}

std::vector<LaneReport> Peers::Report(const Fabric& fabric) const {
  std::vector<LaneReport> reports;
  for (const TrainerPeer& peer : peers) {
    for (const TrainerLane& lane : peer.lanes) {
      reports.push_back({.peer = peer.worker, .path = fabric.DescribeLane(lane.id)});
    }
  }
  return reports;
}

std::pair<TrainerPeer*, TrainerLane*> Peers::FindLane(LaneId id) {
  for (TrainerPeer& peer : peers) {
    for (TrainerLane& lane : peer.lanes) {
      if (lane.id == id && !peer.failed) return {&peer, &lane};
    }
  }
  return {nullptr, nullptr};
}

uint32_t Peers::posts_outstanding() const {
  uint32_t count = 0;
  for (const TrainerPeer& peer : peers) count += peer.posts_outstanding();
  return count;
}

bool Peers::all_sent() const {
  return std::all_of(peers.begin(), peers.end(),
                     [](const TrainerPeer& peer) { return !peer.takes_part() || peer.all_sent(); });
}

bool Peers::done() const {
  return std::all_of(peers.begin(), peers.end(), [](const TrainerPeer& peer) {
    return peer.failed ? peer.quiet : !peer.targeted || peer.done();
  });
}

Peers MakePeers(const RouteTable& routes, const ChunkList& list,
                const std::vector<PeerLanes>& lanes) {
  Peers made;
  for (uint32_t r = 0; r < routes.size(); ++r) {
    if (made.peers.empty() || made.peers.back().worker != routes.worker(r)) {
      TrainerPeer& peer = made.peers.emplace_back();
      peer.worker = routes.worker(r);
      peer.first_route = r;
    }
    made.peers.back().last_route = r + 1;
  }
  uint32_t chunk = 0;
  for (TrainerPeer& peer : made.peers) {
    peer.first_chunk = chunk;
    while (chunk < list.chunks.size() && list.chunks[chunk].worker == peer.worker) ++chunk;
    peer.last_chunk = chunk;
    std::vector<LanePath> paths(1);
    for (const PeerLanes& known : lanes) {
      if (known.peer == peer.worker) paths = known.lanes;
    }
    for (const LanePath& path : paths) peer.lanes.push_back({.nic = path.trainer_nic});
    const std::vector<uint32_t> lane_of = ShareOut(
        absl::MakeConstSpan(list.chunks).subspan(peer.first_chunk, chunk - peer.first_chunk),
        paths);
    made.lane_of_chunk.insert(made.lane_of_chunk.end(), lane_of.begin(), lane_of.end());
    made.peer_of_chunk.insert(made.peer_of_chunk.end(), lane_of.size(), &peer);
  }
  return made;
}

}  // namespace waybill
