// SPDX-License-Identifier: Apache-2.0

// Peers that are killed, stopped and started again.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/base/steady_now.h"
#include "testing/fault_drills/drill.h"

namespace waybill::drills {
namespace {

class ProcessDrill : public Drill {};

// How long the user of a lane waits for a peer that says nothing, before it gives the lane up.
constexpr absl::Duration kPatience = absl::Seconds(1);

TEST_P(ProcessDrill, TheReceiverIsKilled) {
  const Link link = Connect(peer());
  SendTo(link);
  AwaitComplete(link, 32);
  peer().Kill();
  ExpectEnds(link, kDeadPeer);
  EXPECT_TRUE(here().Close(link.at_here).ok());
  RestartPeer();
  ExpectNewLaneWorks();
}

TEST_P(ProcessDrill, TheSenderIsKilled) {
  const Link link = Connect(peer());
  const RegionId region = ReceiveFrom(link);
  AwaitImmediates(link, 32);
  peer().Kill();
  ExpectEnds(link, kDeadPeer);
  here().Fill(region, kUntouched);  // Its lane has failed: it is quiescent.
  ExpectBystanderCarries();
  EXPECT_EQ(here().CountOf(region, kUntouched), Shape().size_bytes());
  EXPECT_TRUE(here().SurroundingsAreIntact(region));
  EXPECT_TRUE(here().Close(link.at_here).ok());
  RestartPeer();
  ExpectNewLaneWorks();
}

TEST_P(ProcessDrill, TheReceiverIsStoppedBeyondTheDeadline) {
  const Link link = Connect(peer());
  const uint32_t region = SendTo(link);
  AwaitComplete(link, 32);
  peer().Stop();
  // Its host goes on answering: nobody but the user of the lane can tell.
  TurnFor(kPatience);
  EXPECT_EQ(here().State(link.at_here).failed, 0u);
  EXPECT_EQ(here().State(link.at_here).posted - here().State(link.at_here).complete, Shape().slots);
  const absl::Time begin = SteadyNow();
  EXPECT_TRUE(here().Close(link.at_here).ok());
  EXPECT_LT(SteadyNow() - begin, Slack());
  here().PoisonSource(link.at_here);
  ExpectBystanderCarries();
  peer().GoOn();
  ExpectEndsAtPeer(link, kDeadPeer);
  // A receiver that was stopped in the middle of a copy has gone on with it, and never reports it.
  const uint64_t read_late = GetParam() == "local" ? Shape().write_bytes : 0;
  EXPECT_LE(CountAtPeer(region, kPoison), read_late);
  ExpectNewLaneWorks();
}

TEST_P(ProcessDrill, TheSenderIsStoppedBeyondTheDeadline) {
  const Link link = Connect(peer());
  const RegionId region = ReceiveFrom(link);
  AwaitImmediates(link, 32);
  peer().Stop();
  TurnFor(kPatience);
  EXPECT_EQ(here().State(link.at_here).failed, 0u);
  EXPECT_TRUE(here().Close(link.at_here).ok());
  here().Fill(region, kUntouched);
  peer().GoOn();
  ExpectEndsAtPeer(link, kDeadPeer);
  ExpectBystanderCarries();
  EXPECT_EQ(here().CountOf(region, kUntouched), Shape().size_bytes());
  ExpectNewLaneWorks();
}

TEST_P(ProcessDrill, TheReceiverIsStoppedForAMoment) {
  const Link link = Connect(peer());
  SendTo(link);
  AwaitComplete(link, 32);
  peer().Stop();
  ExpectBystanderCarries();
  peer().GoOn();
  AwaitComplete(link, 100);
  EXPECT_EQ(peer().State(link.at_peer).wrong, 0u);
}

TEST_P(ProcessDrill, ALaneAddressOfAnEarlierLifeIsNotAnswered) {
  const std::vector<std::string> stale = peer().Ask("open");
  RestartPeer();
  const Link alive = Connect(peer());
  const LaneId lane = *here().Open("peer");
  const absl::Status status = here().fabric().ConnectLane(lane, stale[1]);
  EXPECT_TRUE(!status.ok() || EndsWithin(kConnect, [&] { return here().State(lane).failed == 1; }));
  EXPECT_EQ(here().State(lane).connected, 0u);
  EXPECT_TRUE(here().Close(lane).ok());
  SendTo(alive);
  AwaitComplete(alive, 16);
}

TEST_P(ProcessDrill, ADescriptorOfAnEarlierLifeIsRefused) {
  const Link first = Connect(peer());
  const std::vector<std::string> stale =
      peer().Ask(absl::StrCat("receive ", first.at_peer, " 8 4096"));
  RestartPeer();
  const Link link = Connect(peer());
  SendTo(link);  // The same region number, of the same size, granted on the same lane.
  AwaitComplete(link, 16);
  EXPECT_EQ(here().fabric().Import(link.at_here, stale[1]).status().code(),
            absl::StatusCode::kFailedPrecondition);
  AwaitComplete(link, 16);
}

INSTANTIATE_TEST_SUITE_P(All, ProcessDrill, testing::ValuesIn(NetworksHere()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace waybill::drills
