// A drill: the test's own endpoint `here` on node 0, the peer that is hurt on node 1 and, on node
// 2, a bystander that nothing may happen to.
#ifndef WAYBILL_TESTING_FAULT_DRILLS_DRILL_H_
#define WAYBILL_TESTING_FAULT_DRILLS_DRILL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "testing/fault_drills/network.h"
#include "testing/fault_drills/party.h"
#include "testing/fault_drills/peer_process.h"

namespace waybill::drills {

// A connected lane from here to a peer, or what is left of one.
struct Link {
  PeerProcess* peer = nullptr;
  LaneId at_here = LaneId::kNone;
  uint32_t at_peer = 0;
};

class Drill : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  // The bystander has seen nothing of it all.
  void TearDown() override;

  Party& here() { return *here_; }
  PeerProcess& peer() { return *peer_; }
  // The peer's process anew, on its node.
  void RestartPeer();

  // Turns until it holds; false where it does not, by far. For what has no deadline of its own.
  bool Until(const std::function<bool()>& holds) { return Within(absl::Seconds(50), holds); }
  // The same within what the product promises, and Slack().
  bool EndsWithin(absl::Duration promised, const std::function<bool()>& holds) {
    return Within(promised + Slack(), holds);
  }
  void TurnFor(absl::Duration time);

  Link Connect(PeerProcess& peer);
  // Streams from here to the peer, or the other way. What is told is the peer's, or our, region.
  uint32_t SendTo(const Link& link, const Shape& shape = {});
  RegionId ReceiveFrom(const Link& link, const Shape& shape = {});
  // Until so many writes more are complete here, or immediates more have come.
  void AwaitComplete(const Link& link, uint64_t more);
  void AwaitImmediates(const Link& link, uint64_t more);

  // The lane is dead, or its stream refused: told once, and no write is told complete after it. The
  // bystander carries meanwhile.
  void ExpectEnds(const Link& link, absl::Duration promised);
  // The first half of that: what was told when it ended.
  LaneState ExpectToldDead(const Link& link, absl::Duration promised);
  // And the second, later.
  void ExpectNothingSince(const Link& link, const LaneState& ended);
  // The lane is dead at the peer's end.
  void ExpectEndsAtPeer(const Link& link, absl::Duration promised);
  // A new lane carries in both directions, every byte right.
  void ExpectNewLaneWorks();
  // It goes on carrying, now.
  void ExpectBystanderCarries();
  // Where the link that both its lane and the drill's go by was hurt: the lane to it dies as others
  // do, and there is a new one.
  void ExpectBystanderEnds(absl::Duration promised);
  void ConnectBystander();
  uint64_t CountAtPeer(uint32_t region, std::byte value);

 private:
  bool Within(absl::Duration most, const std::function<bool()>& holds);

  std::unique_ptr<Party> here_;
  std::unique_ptr<PeerProcess> peer_;
  std::unique_ptr<PeerProcess> bystander_;
  Link to_bystander_;
};

}  // namespace waybill::drills

#endif  // WAYBILL_TESTING_FAULT_DRILLS_DRILL_H_
