// SPDX-License-Identifier: Apache-2.0

// Lanes that outlive the plan they were opened for: a later plan uses them again.
#ifndef WAYBILL_CORE_ENGINE_KEPT_LANES_H_
#define WAYBILL_CORE_ENGINE_KEPT_LANES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/fabric/fabric.h"
#include "core/protocol/update.h"

namespace waybill {

// Returns the lanes to a peer. kInvalidArgument: the plan names none.
inline absl::StatusOr<const PeerLanes*> FindLanes(const std::vector<PeerLanes>& peers,
                                                  uint32_t peer) {
  const auto found =
      std::find_if(peers.begin(), peers.end(), [&](const PeerLanes& p) { return p.peer == peer; });
  if (found != peers.end()) return &*found;
  return absl::InvalidArgumentError(
      absl::StrCat("the plan has routes, but no lanes, to rank ", peer, " of the other side"));
}

// Returns true if the lanes to that peer are those of an earlier plan.
inline bool IsKept(const std::vector<PeerLanes>& peers, uint32_t peer) {
  const auto lanes = FindLanes(peers, peer);
  return lanes.ok() && (*lanes)->kept;
}

// The lanes to peers that no plan uses at the moment. `Lane` has an `id` and a `nic`. Lives on the
// progress thread.
template <typename Lane>
class KeptLanes {
 public:
  explicit KeptLanes(Fabric* fabric) : fabric_(*fabric) {}
  ~KeptLanes() { CloseAllBut({}); }
  KeptLanes(const KeptLanes&) = delete;
  KeptLanes& operator=(const KeptLanes&) = delete;

  // Takes the lanes to a peer, all of which work.
  void Add(uint32_t peer, std::vector<Lane> lanes) { lanes_[peer] = std::move(lanes); }

  // Closes those to peers that are not kept.
  void CloseAllBut(const std::vector<PeerLanes>& peers) {
    std::erase_if(lanes_, [&](const auto& of_peer) {
      if (IsKept(peers, of_peer.first)) return false;
      Close(of_peer.second);
      return true;
    });
  }

  // Puts the lanes to a peer in the place of `planned`, which have the same NICs.
  //
  // kFailedPrecondition: they are dead, or were never there.
  absl::Status Take(uint32_t peer, std::vector<Lane>& planned) {
    const auto kept = lanes_.find(peer);
    const auto same_nic = [](const Lane& a, const Lane& b) { return a.nic == b.nic; };
    if (kept == lanes_.end() || !std::equal(kept->second.begin(), kept->second.end(),
                                            planned.begin(), planned.end(), same_nic)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the lanes to rank ", peer, " of the other side are not there any more"));
    }
    planned = std::move(kept->second);
    lanes_.erase(kept);
    return absl::OkStatus();
  }

  // Takes an event. Returns false if it is not of one of these lanes.
  bool Handle(const FabricEvent& event) {
    for (const auto& [peer, lanes] : lanes_) {
      if (std::none_of(lanes.begin(), lanes.end(),
                       [&](const Lane& lane) { return lane.id == event.lane; })) {
        continue;
      }
      if (event.kind == FabricEvent::Kind::kFailed) {
        Close(lanes);
        lanes_.erase(peer);
      }
      return true;
    }
    return false;
  }

 private:
  void Close(const std::vector<Lane>& lanes) {
    for (const Lane& lane : lanes) (void)fabric_.CloseLane(lane.id);
  }

  Fabric& fabric_;
  std::map<uint32_t, std::vector<Lane>> lanes_;  // By peer.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_KEPT_LANES_H_
