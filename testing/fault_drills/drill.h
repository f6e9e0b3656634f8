// SPDX-License-Identifier: Apache-2.0

// A drill has three endpoints: the test's own one, `here`, on node 0, the peer that is hurt on node
// 1, and on node 2 a bystander that must not be affected.
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

// A lane from here to a peer, connected or failed.
struct Link {
  PeerProcess* peer = nullptr;
  LaneId at_here = LaneId::kNone;
  uint32_t at_peer = 0;
};

class Drill : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  // Checks that the bystander was not affected.
  void TearDown() override;

  Party& here() { return *here_; }
  PeerProcess& peer() { return *peer_; }
  // Restarts the peer's process on its node.
  void RestartPeer();

  // Polls until `holds` returns true. Returns false after a long time. For conditions without a
  // promised deadline.
  bool Until(const std::function<bool()>& holds) { return Within(absl::Seconds(50), holds); }
  // Polls until `holds` returns true, for at most the promised time plus Slack().
  bool EndsWithin(absl::Duration promised, const std::function<bool()>& holds) {
    return Within(promised + Slack(), holds);
  }
  void TurnFor(absl::Duration time);

  Link Connect(PeerProcess& peer);
  // Start a stream from here to the peer, or from the peer to here. They return the receiving
  // region.
  uint32_t SendTo(const Link& link, const Shape& shape = {});
  RegionId ReceiveFrom(const Link& link, const Shape& shape = {});
  // Poll until that many more writes are complete here, or more immediates have arrived.
  void AwaitComplete(const Link& link, uint64_t more);
  void AwaitImmediates(const Link& link, uint64_t more);

  // Checks that the lane failed or refused its stream, reported that once, and completed no write
  // afterwards, and that the lane to the bystander works meanwhile.
  void ExpectEnds(const Link& link, absl::Duration promised);
  // The first half of that check: what was reported at the end.
  LaneState ExpectToldDead(const Link& link, absl::Duration promised);
  // The second half, later.
  void ExpectNothingSince(const Link& link, const LaneState& ended);
  // Checks that the lane is dead at the peer's end.
  void ExpectEndsAtPeer(const Link& link, absl::Duration promised);
  // Checks that a new lane carries bytes correctly in both directions.
  void ExpectNewLaneWorks();
  // Checks that the lane still works.
  void ExpectBystanderCarries();
  // For drills that hurt the link of the bystander's lane too: checks that this lane fails like the
  // others, and makes a new one.
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
