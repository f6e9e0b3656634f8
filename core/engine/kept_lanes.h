// SPDX-License-Identifier: Apache-2.0

// Keeps lanes open after the plan that they were opened for, so that a later plan can use them
// again.
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

// Returns true if the plan reuses the peer's lanes of an earlier plan.
inline bool IsKept(const std::vector<PeerLanes>& peers, uint32_t peer) {
  const auto lanes = FindLanes(peers, peer);
  return lanes.ok() && (*lanes)->kept;
}

// The open lanes that the current plan does not use. `Lane` has the members `id` and `nic`. Lives
// on the progress thread.
template <typename Lane>
class KeptLanes {
 public:
  explicit KeptLanes(Fabric* fabric) : fabric_(*fabric) {}
  ~KeptLanes() { CloseAllBut({}); }
  KeptLanes(const KeptLanes&) = delete;
  KeptLanes& operator=(const KeptLanes&) = delete;

  // Adds the lanes to a peer, all of which must work.
  void Add(uint32_t peer, std::vector<Lane> lanes) { lanes_[peer] = std::move(lanes); }

  // Closes the lanes to all peers except those whose lanes `peers` marks as kept.
  void CloseAllBut(const std::vector<PeerLanes>& peers) {
    std::erase_if(lanes_, [&](const auto& of_peer) {
      if (IsKept(peers, of_peer.first)) return false;
      Close(of_peer.second);
      return true;
    });
  }

  // Replaces `planned` by the open lanes to the peer, which have the same NICs.
  //
  // kFailedPrecondition: the lanes are dead, or were never added.
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

  // Handles an event. Returns false if the event does not belong to one of these lanes.
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
