// SPDX-License-Identifier: Apache-2.0

// Regions that go, that others may not write to, or that are too small; and more immediates than
// anybody has room for.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "testing/fault_drills/drill.h"

namespace waybill::drills {
namespace {

class RegionDrill : public Drill {
 protected:
  // The peer ends its region under writes by that command; the region's bytes are its own then.
  void EndUnderWrites(const std::string& verb) {
    const Link link = Connect(peer());
    const uint32_t region = SendTo(link);
    AwaitComplete(link, 32);
    peer().Ask(absl::StrCat(verb, " ", region));
    peer().Ask(absl::StrCat("fill ", region, " ", static_cast<uint32_t>(kUntouched)));
    ExpectEnds(link, kDeadPeer);
    EXPECT_EQ(CountAtPeer(region, kUntouched), Shape().size_bytes());
    EXPECT_TRUE(here().Close(link.at_here).ok());
    ExpectNewLaneWorks();
  }
};

TEST_P(RegionDrill, ItIsReleasedUnderWrites) { EndUnderWrites("release"); }

TEST_P(RegionDrill, ItIsRenewedUnderWrites) { EndUnderWrites("renew"); }

TEST_P(RegionDrill, ItsOldKeyIsNoKey) {
  const Link link = Connect(peer());
  const std::vector<std::string> old =
      peer().Ask(absl::StrCat("receive ", link.at_peer, " 8 4096"));
  peer().Ask(absl::StrCat("renew ", old[0]));
  const Link other = Connect(peer());
  const std::vector<std::string> now =
      peer().Ask(absl::StrCat("grant ", other.at_peer, " ", old[0]));
  peer().Ask(absl::StrCat("fill ", old[0], " ", static_cast<uint32_t>(kUntouched)));
  ASSERT_TRUE(Until([&] { return here().fabric().Import(other.at_here, now[1]).ok(); }));
  // Neither the key that was, nor one that never was, nor one that is another lane's.
  std::string forged = now[1];
  forged.back() = forged.back() == '0' ? '1' : '0';
  for (const std::string& wrong : {old[1], forged}) {
    EXPECT_EQ(here().fabric().Import(other.at_here, wrong).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << wrong;
  }
  EXPECT_EQ(here().fabric().Import(link.at_here, now[1]).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CountAtPeer(static_cast<uint32_t>(std::atoi(old[0].c_str())), kUntouched),
            Shape().size_bytes());
  ExpectNewLaneWorks();
}

TEST_P(RegionDrill, AWritePastItsEndHurtsItsLaneAlone) {
  const Link link = Connect(peer());
  const std::vector<std::string> region =
      peer().Ask(absl::StrCat("receive ", link.at_peer, " 8 4096"));
  // The sender takes it for one slot longer.
  ASSERT_TRUE(here().Send(link.at_here, region[1], {.slots = 9}).ok());
  ExpectEnds(link, kDeadPeer);
  EXPECT_LE(here().State(link.at_here).complete, 8u);
  CountAtPeer(static_cast<uint32_t>(std::atoi(region[0].c_str())), kPoison);
  EXPECT_TRUE(here().Close(link.at_here).ok());
  ExpectNewLaneWorks();
}

TEST_P(RegionDrill, MoreImmediatesThanReceivesWait) {
  constexpr uint32_t kLanes = 4, kDepth = 64;
  constexpr uint64_t kEach = 5 * kDepth;
  std::vector<Link> links;
  for (uint32_t i = 0; i < kLanes; ++i) links.push_back(Connect(peer()));
  for (const Link& link : links) {
    ReceiveFrom(link, {.slots = kDepth, .write_bytes = 64, .count = kEach});
    AwaitImmediates(link, 1);
  }
  // Nobody polls here now. A NIC takes as many as it has receives, and what is posted then waits at
  // the sender. One completion stands for a chain of 16, so up to 15 of those that were taken still
  // count as outstanding, and as many fewer wait.
  const uint64_t waiting = GetParam() == "verbs" ? kDepth + kDepth / 2 : kDepth;
  const absl::Time deadline = SteadyNow() + absl::Seconds(50);
  for (const Link& link : links) {
    const uint64_t wanted = std::min(here().State(link.at_here).immediates + waiting, kEach);
    while (peer().State(link.at_peer).posted < wanted && !HasFailure()) {
      ASSERT_LT(SteadyNow(), deadline) << "the peer posts no more, and " << wanted << " are wanted";
    }
  }
  EXPECT_TRUE(Until([&] {
    for (const Link& link : links) {
      if (here().State(link.at_here).immediates < kEach) return false;
    }
    return true;
  }));
  for (const Link& link : links) {
    EXPECT_EQ(here().State(link.at_here).immediates, kEach);
    EXPECT_EQ(here().State(link.at_here).wrong, 0u);
    EXPECT_TRUE(Until([&] { return peer().State(link.at_peer).complete == kEach; }));
  }
  ExpectNewLaneWorks();
}

INSTANTIATE_TEST_SUITE_P(All, RegionDrill, testing::ValuesIn(NetworksHere()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace waybill::drills
