// SPDX-License-Identifier: Apache-2.0

// What a fabric of fabrics does about a network whose paths carry small packets only, or fail under
// load.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/fabric/choice/choice_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/lane_address.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/endpoints.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill::testing_fabric {
namespace {

class ChoicePathsTest : public testing::Test {
 protected:
  void Start(const ChoiceOptions& options = {}, const fake_verbs::DeviceOptions& device = {}) {
    options_ = options;
    options_.now = [this] { return network.now(); };
    for (const char* name : {"a", "b"}) network.Host(name).AddDevice("mlx5_0", device);
    a = &endpoints.Join("a");
    b = &endpoints.Join("b");
  }

  std::string PathOf(const Lane& lane) { return a->fabric().DescribeLane(lane.at_a); }
  bool IsByVerbs(const Lane& lane) { return absl::StartsWith(PathOf(lane), "verbs: "); }

  // Opens a lane whose path fails as soon as it carries something.
  void LoseALane() {
    const Lane lane = endpoints.Connect(*a, *b);
    ASSERT_TRUE(IsByVerbs(lane)) << PathOf(lane);
    fake_verbs::FakeHost& host = network.Host("a");
    host.FailRequest("mlx5_0", host.queue_pairs("mlx5_0").back(), 0);
    ASSERT_TRUE(a->fabric().Post(lane.at_a, {}, 7, 1).ok());
    ASSERT_TRUE(endpoints.Until([&] { return a->HasFailed(lane.at_a); }));
    ASSERT_TRUE(a->fabric().CloseLane(lane.at_a).ok());
    ASSERT_TRUE(b->fabric().CloseLane(lane.at_b).ok());
  }
  void ExpectConnectedByVerbs(const std::vector<Lane>& lanes) {
    for (const Lane& lane : lanes) {
      ASSERT_TRUE(endpoints.Until([&] {
        return a->Count(FabricEvent::Kind::kConnected, lane.at_a) > 0 &&
               b->Count(FabricEvent::Kind::kConnected, lane.at_b) > 0;
      })) << "the lane does not connect";
      EXPECT_TRUE(IsByVerbs(lane)) << PathOf(lane);
    }
  }

  fake_verbs::FakeNetwork network;
  ChoiceOptions options_;
  Endpoints endpoints{[this](const std::string& name) {
    std::vector<ChoiceMember> members;
    members.push_back(
        {.fabric = *MakeVerbsFabric({.now = options_.now, .library = &network.Host(name)})});
    members.push_back({.fabric = *MakeTcpFabric()});
    return *MakeChoiceFabric(std::move(members), "", options_);
  }};
  Endpoint* a = nullptr;
  Endpoint* b = nullptr;
};

TEST_F(ChoicePathsTest, APathThatLosesLongPacketsIsNotChosen) {
  Start();
  network.DropLonger({"a", "mlx5_0"}, {"b", "mlx5_0"}, 1500);
  const Lane lane = endpoints.Connect(*a, *b);
  EXPECT_TRUE(absl::StartsWith(PathOf(lane), "tcp: ")) << PathOf(lane);
  EXPECT_TRUE(absl::StrContains(PathOf(lane), "transport retry counter exceeded")) << PathOf(lane);
  const Region from = endpoints.SourceAtA(lane, 100'000);
  const Reached to = endpoints.AllocateAtB(lane, 100'000);
  EXPECT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 100'000}}));
}

TEST_F(ChoicePathsTest, APathOnWhichLanesFailTwiceIsAvoidedAndThePathSaysSo) {
  Start();
  LoseALane();
  LoseALane();
  const Lane lane = endpoints.Connect(*a, *b);
  EXPECT_TRUE(absl::StartsWith(PathOf(lane), "tcp: ")) << PathOf(lane);
  EXPECT_TRUE(absl::StrContains(PathOf(lane),
                                "not verbs: avoided for 5m, because 2 lanes have "
                                "failed, the last one at "))
      << PathOf(lane);
  EXPECT_TRUE(absl::StrContains(b->fabric().DescribeLane(lane.at_b), "or avoids it"));
}

TEST_F(ChoicePathsTest, APathIsTriedAgainWhenItHasBeenAvoidedForLongEnough) {
  Start({.avoid_path_for = absl::ZeroDuration()});
  for (int i = 0; i < 4; ++i) LoseALane();
  EXPECT_TRUE(IsByVerbs(endpoints.Connect(*a, *b)));
}

TEST_F(ChoicePathsTest, ThatAPeerClosesItsEndsIsNoFaultOfThePath) {
  Start();
  for (int i = 0; i < 4; ++i) {
    const Lane lane = endpoints.Connect(*a, *b);
    ASSERT_TRUE(b->fabric().CloseLane(lane.at_b).ok());
    ASSERT_TRUE(endpoints.Until([&] { return a->HasFailed(lane.at_a); }));
  }
  EXPECT_TRUE(IsByVerbs(endpoints.Connect(*a, *b)));
}

// Each lane keeps the thread for longer than others may take to connect.
TEST_F(ChoicePathsTest, LanesAreNotGivenUpWhileTheThreadIsBusyWithOthers) {
  Start({}, {.queue_pair_call = absl::Seconds(10), .registration = absl::Seconds(40)});
  std::vector<Lane> lanes;
  for (int i = 0; i < 16; ++i) {
    const Lane lane = endpoints.Open(*a, *b);
    ASSERT_TRUE(a->fabric().ConnectLane(lane.at_a, *b->fabric().LaneAddress(lane.at_b)).ok());
    ASSERT_TRUE(a->fabric().Allocate(100, "memory").ok());
    ASSERT_TRUE(b->fabric().ConnectLane(lane.at_b, *a->fabric().LaneAddress(lane.at_a)).ok());
    a->Poll();
    b->Poll();
    lanes.push_back(lane);
  }
  ExpectConnectedByVerbs(lanes);
}

// The rank opens its lanes one after the other, and they are connected beside it.
TEST_F(ChoicePathsTest, TheSetUpOf256LanesTakesAtMostTwiceTheWorkOfOneNicAndNoneGoesByTcp) {
  constexpr int kLanes = 256;
  const fake_verbs::DeviceOptions slow{.queue_pair_call = absl::Milliseconds(1),
                                       .registration = absl::Milliseconds(100)};
  fake_verbs::FakeHost& host = network.Host("a");
  options_.now = [this] { return network.now(); };
  for (const char* nic : {"mlx5_0", "mlx5_1"}) {
    host.AddDevice(nic, slow);
    network.Host("b").AddDevice(nic);
  }
  a = &endpoints.Join("a");
  b = &endpoints.Join("b");
  const absl::Time begin = network.now();
  ASSERT_TRUE(a->fabric().Allocate(1 << 20, "memory").ok());
  std::vector<Lane> lanes;
  for (int i = 0; i < kLanes; ++i) {
    const std::string nic = absl::StrCat("mlx5_", i % 2);
    const Lane lane{a, b, *a->fabric().OpenLane("b", nic), *b->fabric().OpenLane("a", nic)};
    ASSERT_TRUE(a->fabric().ConnectLane(lane.at_a, *b->fabric().LaneAddress(lane.at_b)).ok());
    ASSERT_TRUE(b->fabric().ConnectLane(lane.at_b, *a->fabric().LaneAddress(lane.at_a)).ok());
    a->Poll();
    b->Poll();
    lanes.push_back(lane);
  }
  ExpectConnectedByVerbs(lanes);
  absl::Duration most_beside, most_work;
  for (const char* nic : {"mlx5_0", "mlx5_1"}) {
    most_beside = std::max(most_beside, host.busy(nic, /*of_this_thread=*/false));
    most_work = std::max(most_work, host.busy(nic, true) + host.busy(nic, false));
  }
  // As if nothing went on beside this thread until its last call.
  const absl::Duration took = network.now() - begin + most_beside;
  EXPECT_LE(took, 2 * most_work) << most_work << " on the slowest NIC";
  RecordProperty("took", absl::FormatDuration(took));
  RecordProperty("most_work", absl::FormatDuration(most_work));
}

}  // namespace
}  // namespace waybill::testing_fabric
