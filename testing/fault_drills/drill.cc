// SPDX-License-Identifier: Apache-2.0

#include "testing/fault_drills/drill.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "core/base/steady_now.h"

namespace waybill::drills {

void Drill::SetUp() {
  // They start while our own fabric is made.
  peer_ = std::make_unique<PeerProcess>(GetParam(), 1);
  bystander_ = std::make_unique<PeerProcess>(GetParam(), 2);
  here_ = std::make_unique<Party>(MakeFabric(GetParam(), 0));
  ConnectBystander();
}

void Drill::ConnectBystander() {
  to_bystander_ = Connect(*bystander_);
  SendTo(to_bystander_, {.slots = 2, .write_bytes = 512});
  AwaitComplete(to_bystander_, 4);
}

void Drill::TearDown() {
  ExpectBystanderCarries();
  const LaneState ours = here_->State(to_bystander_.at_here);
  const LaneState theirs = bystander_->State(to_bystander_.at_peer);
  EXPECT_EQ(ours.failed + ours.refused + ours.wrong, 0u);
  EXPECT_EQ(theirs.failed + theirs.wrong, 0u);
  // The memory of lanes is destroyed after the lanes.
  peer_.reset();
  bystander_.reset();
}

void Drill::RestartPeer() {
  peer_->Kill();
  peer_ = std::make_unique<PeerProcess>(GetParam(), 1);
}

bool Drill::Within(absl::Duration most, const std::function<bool()>& holds) {
  const absl::Time deadline = SteadyNow() + most;
  while (!holds()) {
    if (SteadyNow() > deadline) return false;
    here_->Wait(absl::Milliseconds(1));
    here_->Turn();
  }
  return true;
}

void Drill::TurnFor(absl::Duration time) {
  (void)Within(time, [] { return false; });
}

Link Drill::Connect(PeerProcess& peer) {
  Link link{.peer = &peer};
  const absl::StatusOr<LaneId> lane = here_->Open("peer");
  EXPECT_TRUE(lane.ok()) << lane.status();
  if (!lane.ok()) return link;
  link.at_here = *lane;
  const std::vector<std::string> opened = peer.Ask("open");
  link.at_peer = static_cast<uint32_t>(std::atoi(opened[0].c_str()));
  EXPECT_EQ(here_->fabric().ConnectLane(link.at_here, opened[1]).message(), "");
  peer.Ask(absl::StrCat("connect ", link.at_peer, " ", *here_->fabric().LaneAddress(link.at_here)));
  EXPECT_TRUE(Until([&] {
    return here_->State(link.at_here).connected == 1 && peer.State(link.at_peer).connected == 1;
  })) << "the lane does not connect: "
      << here_->fabric().LaneStatus(link.at_here);
  return link;
}

uint32_t Drill::SendTo(const Link& link, const Shape& shape) {
  const std::vector<std::string> region = link.peer->Ask(
      absl::StrCat("receive ", link.at_peer, " ", shape.slots, " ", shape.write_bytes));
  EXPECT_EQ(here_->Send(link.at_here, region[1], shape).message(), "");
  return static_cast<uint32_t>(std::atoi(region[0].c_str()));
}

RegionId Drill::ReceiveFrom(const Link& link, const Shape& shape) {
  const absl::StatusOr<Destination> to = here_->Receive(link.at_here, shape);
  EXPECT_TRUE(to.ok()) << to.status();
  if (!to.ok()) return RegionId::kNone;
  link.peer->Ask(absl::StrCat("send ", link.at_peer, " ", to->descriptor, " ", shape.slots, " ",
                              shape.write_bytes, " ", shape.count));
  return to->region;
}

void Drill::AwaitComplete(const Link& link, uint64_t more) {
  const uint64_t wanted = here_->State(link.at_here).complete + more;
  EXPECT_TRUE(Until([&] { return here_->State(link.at_here).complete >= wanted; }))
      << here_->State(link.at_here).complete << " of " << wanted
      << " writes are complete: " << here_->fabric().LaneStatus(link.at_here);
}

void Drill::AwaitImmediates(const Link& link, uint64_t more) {
  const uint64_t wanted = here_->State(link.at_here).immediates + more;
  EXPECT_TRUE(Until([&] { return here_->State(link.at_here).immediates >= wanted; }))
      << here_->State(link.at_here).immediates << " of " << wanted
      << " immediates have come: " << here_->fabric().LaneStatus(link.at_here);
}

void Drill::ExpectEnds(const Link& link, absl::Duration promised) {
  const LaneState ended = ExpectToldDead(link, promised);
  ExpectBystanderCarries();
  ExpectNothingSince(link, ended);
}

LaneState Drill::ExpectToldDead(const Link& link, absl::Duration promised) {
  EXPECT_TRUE(EndsWithin(promised, [&] {
    const LaneState state = here_->State(link.at_here);
    return state.failed + state.refused > 0;
  })) << "the lane to the peer is not told dead";
  return here_->State(link.at_here);
}

void Drill::ExpectNothingSince(const Link& link, const LaneState& ended) {
  const LaneState later = here_->State(link.at_here);
  EXPECT_LE(later.failed, 1u);
  EXPECT_EQ(later.wrong, 0u);
  if (ended.failed == 1) {
    EXPECT_EQ(later.complete, ended.complete);
    EXPECT_EQ(later.immediates, ended.immediates);
    EXPECT_FALSE(here_->fabric().LaneStatus(link.at_here).ok());
  }
}

void Drill::ExpectBystanderEnds(absl::Duration promised) {
  ExpectToldDead(to_bystander_, promised);
  ExpectEndsAtPeer(to_bystander_, promised);
  EXPECT_TRUE(here_->Close(to_bystander_.at_here).ok());
}

void Drill::ExpectEndsAtPeer(const Link& link, absl::Duration promised) {
  EXPECT_TRUE(EndsWithin(promised, [&] {
    const LaneState state = link.peer->State(link.at_peer);
    return state.failed + state.refused > 0;
  })) << "the peer is not told";
  EXPECT_EQ(link.peer->State(link.at_peer).wrong, 0u);
}

void Drill::ExpectNewLaneWorks() {
  constexpr uint64_t kWrites = 24;
  const Link link = Connect(*peer_);
  SendTo(link, {.count = kWrites});
  ReceiveFrom(link, {.count = kWrites});
  EXPECT_TRUE(Until([&] {
    const LaneState state = here_->State(link.at_here);
    return state.complete == kWrites && state.immediates == kWrites &&
           link.peer->State(link.at_peer).immediates == kWrites;
  })) << here_->fabric().LaneStatus(link.at_here);
  EXPECT_EQ(here_->State(link.at_here).wrong, 0u);
  EXPECT_EQ(link.peer->State(link.at_peer).wrong, 0u);
}

void Drill::ExpectBystanderCarries() { AwaitComplete(to_bystander_, 8); }

uint64_t Drill::CountAtPeer(uint32_t region, std::byte value) {
  const std::vector<std::string> counted =
      peer_->Ask(absl::StrCat("count ", region, " ", static_cast<uint32_t>(value)));
  EXPECT_EQ(counted[1], "1") << "bytes beside the region were written";
  return std::strtoull(counted[0].c_str(), nullptr, 10);
}

}  // namespace waybill::drills
