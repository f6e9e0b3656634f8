// SPDX-License-Identifier: Apache-2.0

// Tests of rare faults of NICs: every post ends once, only affected lanes fail, and the reason is
// given.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/steady_now.h"
#include "core/fabric/path_failure.h"
#include "core/fabric/verbs/lane_address.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/endpoints.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill {
namespace {

using fake_verbs::DeviceOptions;
using fake_verbs::Direction;
using fake_verbs::FakeHost;
using fake_verbs::FakeNetwork;
using testing_fabric::Endpoint;
using testing_fabric::Endpoints;
using testing_fabric::Lane;
using testing_fabric::Reached;
using Kind = FabricEvent::Kind;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

// Two hosts with two NICs each.
class VerbsFabricFaultTest : public testing::Test {
 protected:
  void Start(const DeviceOptions& device = {}, uint32_t queue_depth = 256) {
    depth_ = queue_depth;
    for (FakeHost* host : {&host_a, &host_b}) {
      for (const char* name : {"mlx5_0", "mlx5_1"}) host->AddDevice(name, device);
    }
    a = &endpoints.Join("a");
    b = &endpoints.Join("b");
  }

  // Between the NICs of that name.
  Lane Connect(absl::string_view nic = "mlx5_0") {
    const Lane lane{a, b, *a->fabric().OpenLane("b", nic), *b->fabric().OpenLane("a", nic)};
    EXPECT_TRUE(a->fabric().ConnectLane(lane.at_a, *b->fabric().LaneAddress(lane.at_b)).ok());
    EXPECT_TRUE(b->fabric().ConnectLane(lane.at_b, *a->fabric().LaneAddress(lane.at_a)).ok());
    EXPECT_TRUE(endpoints.Until([&] {
      return a->Count(Kind::kConnected, lane.at_a) > 0 && b->Count(Kind::kConnected, lane.at_b) > 0;
    }));
    return lane;
  }

  static uint32_t QueuePair(Endpoint& endpoint, LaneId lane) {
    return verbs::ParseLaneAddress(*endpoint.fabric().LaneAddress(lane))->queue_pair;
  }

  bool Carries(const Lane& lane) {
    const Reached to = endpoints.AllocateAtB(lane, 16);
    const Region from = endpoints.SourceAtA(lane, 16, 77);
    const size_t before = lane.b->Immediates(lane.at_b).size();
    return endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 16}}, 4711) &&
           endpoints.Until([&] { return lane.b->Immediates(lane.at_b).size() > before; }) &&
           to.region.memory.data[9] == testing_fabric::ByteAt(9, 77);
  }

  absl::Status WaitForFailure(Endpoint& endpoint, LaneId lane) {
    EXPECT_TRUE(endpoints.Until([&] { return endpoint.HasFailed(lane); })) << "it does not fail";
    endpoints.UntilQuiet();
    EXPECT_EQ(endpoint.Count(Kind::kFailed, lane), 1u);
    return endpoint.fabric().LaneStatus(lane);
  }

  std::vector<std::string> NicsOf(Endpoint& endpoint) {
    std::vector<std::string> names;
    for (const FabricNic& nic : endpoint.fabric().Nics()) names.push_back(nic.name);
    return names;
  }

  FakeNetwork network;
  FakeHost& host_a = network.Host("a");
  FakeHost& host_b = network.Host("b");
  Endpoints endpoints{[this](const std::string& name) {
    return *MakeVerbsFabric({.queue_depth = depth_,
                             .long_pause = long_pause,
                             .dead_peer_timeout = dead_peer_timeout,
                             .library = &network.Host(name)});
  }};
  absl::Duration long_pause = VerbsOptions().long_pause;
  absl::Duration dead_peer_timeout = absl::Seconds(10);
  Endpoint* a = nullptr;
  Endpoint* b = nullptr;

 private:
  uint32_t depth_ = 256;
};

// --- posting ---

TEST_F(VerbsFabricFaultTest, AFullQueueIsNoErrorOfTheUsers) {
  Start();
  const Lane lane = Connect();
  for (const uint32_t accepted : {0u, 1u, 7u, 15u}) {
    ASSERT_TRUE(a->fabric().Post(lane.at_a, {}, 1, accepted * 100).ok());  // Outstanding.
    host_a.RefusePost("mlx5_0", QueuePair(*a, lane.at_a), accepted, ENOMEM);
    for (uint32_t i = 1; i <= 40; ++i) {
      ASSERT_EQ(a->fabric().Post(lane.at_a, {}, 1, accepted * 100 + i).message(), "");
    }
    ASSERT_TRUE(endpoints.Until([&] { return a->IsComplete(lane.at_a, accepted * 100 + 40); }));
  }
  EXPECT_EQ(a->Count(Kind::kComplete, lane.at_a), 4 * 41u);
  EXPECT_TRUE(endpoints.Until([&] { return b->Immediates(lane.at_b).size() == 4 * 41; }));
  EXPECT_TRUE(Carries(lane));
}

struct StatusCase {
  ibv_wc_status reported;
  absl::StatusCode expected;
  const char* text;
};

TEST_F(VerbsFabricFaultTest, AFailedRequestFailsItsLaneWithTheCauseAndNotWithWhatFollowed) {
  const StatusCase kCases[] = {
      {IBV_WC_RETRY_EXC_ERR, kUnavailable, "transport retry counter exceeded (status 12"},
      {IBV_WC_RNR_RETRY_EXC_ERR, kUnavailable, "RNR retry counter exceeded"},
      {IBV_WC_REM_INV_REQ_ERR, kUnavailable, "remote invalid request error"},
      {IBV_WC_REM_ACCESS_ERR, absl::StatusCode::kFailedPrecondition,
       "the region's key is not valid at the peer any more"},
      {IBV_WC_LOC_PROT_ERR, absl::StatusCode::kInternal, "local protection error"},
      {IBV_WC_LOC_LEN_ERR, absl::StatusCode::kInternal, "local length error"},
      {IBV_WC_GENERAL_ERR, kUnavailable, "(status 21, vendor 81)"},
  };
  Start();
  const Lane other = Connect();
  for (const StatusCase& c : kCases) {
    const Lane lane = Connect();
    host_a.FailRequest("mlx5_0", QueuePair(*a, lane.at_a), 0, c.reported);
    ASSERT_TRUE(a->fabric().Post(lane.at_a, {}, 1, 1).ok());
    const absl::Status status = WaitForFailure(*a, lane.at_a);
    EXPECT_EQ(status.code(), c.expected) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "lane to b: verbs: mlx5_0 (10.0.")) << status;
    const absl::Status at_b = WaitForFailure(*b, lane.at_b);
    EXPECT_EQ(at_b.code(), kUnavailable);
    EXPECT_TRUE(absl::StrContains(at_b.message(), c.text)) << at_b;  // It is told, too.
    EXPECT_TRUE(a->fabric().CloseLane(lane.at_a).ok());
    EXPECT_TRUE(b->fabric().CloseLane(lane.at_b).ok());
  }
  EXPECT_TRUE(Carries(other));
}

TEST_F(VerbsFabricFaultTest, OfAFlushEveryPostEndsOnceAndWhatDidNotLandIsNotComplete) {
  Start();
  for (const uint64_t failing : {0u, 5u, 16u, 37u}) {
    const Lane lane = Connect();
    const Region from = endpoints.SourceAtA(lane, 50);
    std::memset(from.memory.data, 0x33, 50);
    const Reached to = endpoints.AllocateAtB(lane, 50);
    host_a.FailRequest("mlx5_0", QueuePair(*a, lane.at_a), failing, IBV_WC_RETRY_EXC_ERR);
    for (uint64_t i = 0; i < 50; ++i) {
      ASSERT_TRUE(
          a->fabric().Post(lane.at_a, {{from.id, i, to.remote, i, 1}}, std::nullopt, i).ok());
    }
    (void)WaitForFailure(*a, lane.at_a);
    uint64_t next = 0;
    bool failed = false;
    for (const FabricEvent& e : a->events()) {
      if (e.lane != lane.at_a || e.kind == Kind::kConnected) continue;
      EXPECT_FALSE(failed);  // It is the last.
      failed = e.kind == Kind::kFailed;
      if (e.kind == Kind::kComplete) {
        EXPECT_EQ(e.token, next++);
      }
    }
    EXPECT_TRUE(failed);
    EXPECT_LE(next, failing);
    for (uint64_t i = 0; i < 50; ++i) {
      EXPECT_EQ(to.region.memory.data[i], i < failing ? std::byte{0x33} : std::byte{0}) << i;
    }
    EXPECT_FALSE(a->fabric().Post(lane.at_a, {}, 1, 1).ok());
  }
}

TEST_F(VerbsFabricFaultTest, AReceiverThatWasNotReadyGoesOnWhenItIs) {
  Start();
  const Lane lane = Connect();
  uint32_t posted = 0;
  for (int round = 0; round < 300; ++round) {  // b does not poll, and has few receives.
    while (a->fabric().Post(lane.at_a, {}, posted, posted).ok()) ++posted;
    a->Poll();
  }
  EXPECT_GE(posted, 100u);
  EXPECT_LE(posted, 200u);
  EXPECT_FALSE(a->HasFailed(lane.at_a));
  ASSERT_TRUE(endpoints.Until([&] { return b->Immediates(lane.at_b).size() == posted; }));
  for (uint32_t i = 0; i < posted; ++i) EXPECT_EQ(b->Immediates(lane.at_b)[i], i);
  ASSERT_TRUE(endpoints.Until([&] { return a->IsComplete(lane.at_a, posted - 1); }));
  EXPECT_TRUE(Carries(lane));
}

// --- what may not be believed ---

TEST_F(VerbsFabricFaultTest, CompletionsOfLanesThatAreGoneAreIgnored) {
  Start({.completions_outlive_queue_pairs = true});
  const Lane lane = Connect();
  const Lane gone = Connect();
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(a->fabric().Post(gone.at_a, {}, 1, i).ok());
  network.Step();
  ASSERT_TRUE(a->fabric().CloseLane(gone.at_a).ok());
  const uint32_t queue_pair = QueuePair(*a, lane.at_a);
  EXPECT_GT(host_a.unpolled("mlx5_0", queue_pair, Direction::kSend), 0u);
  for (const uint64_t wr_id : {uint64_t{0}, uint64_t{999} << 32 | 1, ~uint64_t{0}}) {
    for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
      host_a.AddCompletion("mlx5_0", queue_pair, direction,
                           fake_verbs::FailedCompletion(wr_id, IBV_WC_FATAL_ERR, 4242));
    }
  }
  endpoints.UntilQuiet();
  EXPECT_FALSE(a->HasFailed(lane.at_a));
  EXPECT_EQ(a->Count(Kind::kComplete, gone.at_a), 0u);
  EXPECT_TRUE(Carries(lane));
}

TEST_F(VerbsFabricFaultTest, ACompletionThatComesTwiceCountsOnce) {
  Start();
  const Lane lane = Connect();
  host_a.DuplicateCompletions("mlx5_0", true);
  host_b.DuplicateCompletions("mlx5_0", true);
  std::vector<uint32_t> expected;
  for (uint32_t i = 0; i < 300; ++i) {
    const uint64_t token = endpoints.NextToken();
    ASSERT_TRUE(a->fabric().Post(lane.at_a, {}, i, token).ok());
    ASSERT_TRUE(endpoints.Until([&] { return a->IsComplete(lane.at_a, token); }));
    expected.push_back(i);
  }
  endpoints.UntilQuiet();
  EXPECT_EQ(a->Count(Kind::kComplete, lane.at_a), 300u);
  EXPECT_EQ(b->Immediates(lane.at_b), expected);
  EXPECT_FALSE(b->HasFailed(lane.at_b));
}

// --- what devices tell ---

TEST_F(VerbsFabricFaultTest, AFatalErrorOfAQueuePairFailsItsLaneAndNoOther) {
  Start();
  const Lane lane = Connect();
  const Lane other = Connect();
  host_a.FailQueuePair("mlx5_0", QueuePair(*a, lane.at_a));
  const absl::Status status = WaitForFailure(*a, lane.at_a);
  EXPECT_EQ(status.code(), kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "mlx5_0: local work queue catastrophic error"))
      << status;
  EXPECT_EQ(WaitForFailure(*b, lane.at_b).code(), kUnavailable);
  EXPECT_TRUE(Carries(other));
}

TEST_F(VerbsFabricFaultTest, APortThatGoesDownTakesItsLanesAndComesBack) {
  Start();
  const Lane first = Connect("mlx5_0");
  const Lane second = Connect("mlx5_0");
  const Lane other = Connect("mlx5_1");
  host_a.SetPort("mlx5_0", 1, false);
  for (const Lane& lane : {first, second}) {
    const absl::Status status = WaitForFailure(*a, lane.at_a);
    EXPECT_EQ(status.code(), kUnavailable);
    EXPECT_TRUE(absl::StrContains(status.message(), "mlx5_0: port error")) << status;
  }
  EXPECT_EQ(NicsOf(*a), std::vector<std::string>{"mlx5_1"});
  const absl::Status refused = a->fabric().OpenLane("b", "mlx5_0").status();
  EXPECT_EQ(refused.code(), kUnavailable);
  EXPECT_TRUE(absl::StrContains(refused.message(), "mlx5_0: port error")) << refused;
  EXPECT_TRUE(Carries(other));
  EXPECT_TRUE(Carries(Connect("mlx5_1")));

  host_a.SetPort("mlx5_0", 1, true);
  EXPECT_TRUE(endpoints.Until([&] { return NicsOf(*a).size() == 2; }));
  EXPECT_TRUE(Carries(Connect("mlx5_0")));
}

TEST_F(VerbsFabricFaultTest, WhereEveryNicIsDownALaneIsRefusedWithTheReason) {
  Start();
  host_a.SetPort("mlx5_0", 1, false);
  host_a.SetPort("mlx5_1", 1, false);
  ASSERT_TRUE(endpoints.Until([&] { return NicsOf(*a).empty(); }));
  const absl::Status refused = a->fabric().OpenLane("b", "").status();
  EXPECT_EQ(refused.code(), kUnavailable);
  EXPECT_TRUE(absl::StrContains(refused.message(), "port error")) << refused;
}

TEST_F(VerbsFabricFaultTest, AFatalErrorOfADeviceIsTheEndOfItAndOfNoOther) {
  Start();
  const Lane lane = Connect("mlx5_0");
  const Lane other = Connect("mlx5_1");
  const Region region = *a->fabric().Allocate(4096, "memory");
  host_a.FailDevice("mlx5_0");
  const absl::Status status = WaitForFailure(*a, lane.at_a);
  EXPECT_EQ(status.code(), kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "mlx5_0: local catastrophic error")) << status;
  EXPECT_EQ(NicsOf(*a), std::vector<std::string>{"mlx5_1"});
  EXPECT_TRUE(Carries(other));  // With memory that is registered now.
  EXPECT_TRUE(a->fabric().Renew(region.id, Contents::kKept).ok());
  EXPECT_TRUE(a->fabric().Release(region.id).ok());
  host_a.SetPort("mlx5_0", 1, true);  // A port of it does not bring it back.
  endpoints.UntilQuiet();
  EXPECT_EQ(NicsOf(*a), std::vector<std::string>{"mlx5_1"});
}

TEST_F(VerbsFabricFaultTest, AfterAnOverrunNewLanesUseANewQueue) {
  for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
    if (a == nullptr) Start();
    const Lane lane = Connect("mlx5_0");
    const Lane sharing = Connect("mlx5_0");
    const Lane other = Connect("mlx5_1");
    host_a.Overrun("mlx5_0", QueuePair(*a, lane.at_a), direction);
    for (const Lane& hurt : {lane, sharing}) {
      const absl::Status status = WaitForFailure(*a, hurt.at_a);
      EXPECT_EQ(status.code(), kUnavailable);
      EXPECT_TRUE(absl::StrContains(status.message(), "mlx5_0: CQ error")) << status;
    }
    EXPECT_TRUE(Carries(other));
    EXPECT_EQ(NicsOf(*a).size(), 2u);
    EXPECT_TRUE(Carries(Connect("mlx5_0")));
  }
}

// --- paths and keys ---

TEST_F(VerbsFabricFaultTest, APathThatIsCutFailsItsLanesAndNoOther) {
  Start();
  const Lane lane = Connect("mlx5_0");
  const Lane other = Connect("mlx5_1");
  network.Cut({"a", "mlx5_0"}, {"b", "mlx5_0"});
  ASSERT_TRUE(a->fabric().Post(lane.at_a, {}, 1, 1).ok());
  const absl::Status status = WaitForFailure(*a, lane.at_a);
  EXPECT_EQ(status.code(), kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "retry counter exceeded")) << status;
  EXPECT_FALSE(a->IsComplete(lane.at_a, 1));
  EXPECT_TRUE(Carries(other));
  network.Heal({"a", "mlx5_0"}, {"b", "mlx5_0"});
  EXPECT_TRUE(Carries(Connect("mlx5_0")));
}

// Its side channel is full for longer than a host may be silent: this one answers.
TEST_F(VerbsFabricFaultTest, APeerThatDoesNotReadIsNotDead) {
  dead_peer_timeout = absl::Seconds(1);
  Start();
  const Lane lane = Connect();
  const std::string long_name(60'000, 'x');
  for (int i = 0; i < 200; ++i) {
    const Region region = *a->fabric().Allocate(1, long_name);
    ASSERT_TRUE(a->fabric().Grant(lane.at_a, region.id).ok());
  }
  const absl::Time until = SteadyNow() + absl::Milliseconds(2500);
  while (SteadyNow() < until) {
    a->fabric().Wait(until);
    a->Poll();
  }
  EXPECT_EQ(a->fabric().LaneStatus(lane.at_a).message(), "");
  endpoints.UntilQuiet();
  EXPECT_TRUE(Carries(lane));
}

TEST_F(VerbsFabricFaultTest, AKeyThatWasRenewedIsRefusedByTheNicWhereTheSenderDoesNotKnowYet) {
  Start();
  const Lane lane = Connect();
  const Lane other = Connect();
  const Region from = endpoints.SourceAtA(lane, 100);
  const Reached to = endpoints.AllocateAtB(lane, 100);
  ASSERT_TRUE(b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
  ASSERT_TRUE(a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, 100}}, std::nullopt, 1).ok());
  const absl::Status status = WaitForFailure(*a, lane.at_a);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "key is not valid at the peer any more"))
      << status;
  EXPECT_TRUE(testing_fabric::AllAre(to.region.memory, std::byte{0}));
  EXPECT_EQ(WaitForFailure(*b, lane.at_b).code(), kUnavailable);
  EXPECT_TRUE(Carries(other));
}

TEST_F(VerbsFabricFaultTest, ARegionThatCouldNotBeRenewedIsNotUsed) {
  Start();
  const Lane lane = Connect();
  const Region from = endpoints.SourceAtA(lane, 100);
  const Reached to = endpoints.AllocateAtB(lane, 100);
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  for (FakeHost* host : {&host_a, &host_b})
    host->FailRegistrations("mlx5_1", {.error = EFAULT, .count = 1});
  EXPECT_EQ(a->fabric().Renew(from.id, Contents::kKept).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(b->fabric().Renew(to.region.id, Contents::kKept).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, 100}}, std::nullopt, 1).code(),
            kRefused);
  EXPECT_EQ(b->fabric().Grant(lane.at_b, to.region.id).code(), kRefused);
  EXPECT_TRUE(Carries(lane));
}

TEST_F(VerbsFabricFaultTest, WritesThatWaitWhenTheirGrantIsTakenBackAreNotPosted) {
  long_pause = absl::ZeroDuration();  // As if the process had been stopped before each call.
  Start();
  const Lane lane = Connect();
  const Region from = endpoints.SourceAtA(lane, 64);
  const Reached to = endpoints.AllocateAtB(lane, 64);
  const Write write{from.id, 0, to.remote, 0, 64};
  for (const uint64_t token : {1, 2}) {  // The second one waits for a whole chain.
    ASSERT_TRUE(a->fabric().Post(lane.at_a, {&write, 1}, std::nullopt, token).ok());
  }
  const uint64_t posted = host_a.counts("mlx5_0").requests;
  ASSERT_TRUE(b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
  ASSERT_TRUE(endpoints.Until([&] { return a->HasFailed(lane.at_a); }));
  EXPECT_EQ(host_a.counts("mlx5_0").requests, posted);
  EXPECT_EQ(a->fabric().LaneStatus(lane.at_a).message(),
            "lane to b: b took back the grant of \"destination\" while writes to it were waiting");
}

TEST_F(VerbsFabricFaultTest, APeerWhoseAddressIsLookedUpForLongHoldsUpNoOtherLane) {
  std::latch found(1);
  std::atomic<bool> waits = true;
  Start({.during_modification = [&](ibv_qp_state to) {
    if (to == IBV_QPS_RTR && waits.exchange(false)) found.wait();
  }});
  const Lane held_up = endpoints.Open(*a, *b);
  Fabric& at_a = a->fabric();
  ASSERT_TRUE(at_a.ConnectLane(held_up.at_a, *b->fabric().LaneAddress(held_up.at_b)).ok());
  ASSERT_TRUE(endpoints.Until([&] { return !waits; }));
  EXPECT_TRUE(Carries(Connect("mlx5_1")));
  EXPECT_EQ(a->Count(Kind::kConnected, held_up.at_a), 0u);
  found.count_down();
  ASSERT_TRUE(b->fabric().ConnectLane(held_up.at_b, *at_a.LaneAddress(held_up.at_a)).ok());
  ASSERT_TRUE(endpoints.Until([&] { return a->Count(Kind::kConnected, held_up.at_a) > 0; }));
}

TEST_F(VerbsFabricFaultTest, ALaneThatIsClosedWhileItConnectsIsClosed) {
  Start();
  for (int i = 0; i < 50; ++i) {
    const Lane lane = endpoints.Open(*a, *b);
    ASSERT_TRUE(a->fabric().ConnectLane(lane.at_a, *b->fabric().LaneAddress(lane.at_b)).ok());
    if (i % 2 == 0) a->Poll();
    ASSERT_TRUE(a->fabric().CloseLane(lane.at_a).ok());
    ASSERT_TRUE(b->fabric().CloseLane(lane.at_b).ok());
  }
  EXPECT_EQ(host_a.counts("mlx5_0").queue_pairs, 0u);
  EXPECT_TRUE(Carries(Connect()));
}

TEST_F(VerbsFabricFaultTest, ALaneWhosePathLosesLongPacketsIsNotConnected) {
  Start();
  network.DropLonger({"a", "mlx5_0"}, {"b", "mlx5_0"}, 1500);
  const Lane lane = endpoints.Open(*a, *b);
  ASSERT_TRUE(a->fabric().ConnectLane(lane.at_a, *b->fabric().LaneAddress(lane.at_b)).ok());
  ASSERT_TRUE(b->fabric().ConnectLane(lane.at_b, *a->fabric().LaneAddress(lane.at_a)).ok());
  const absl::Status status = WaitForFailure(*a, lane.at_a);
  EXPECT_TRUE(IsPathFailure(status)) << status;
  EXPECT_EQ(a->Count(Kind::kConnected, lane.at_a) + b->Count(Kind::kConnected, lane.at_b), 0u);
}

TEST_F(VerbsFabricFaultTest, ALaneWithoutMemoryForAProbeIsProvedByAnEmptyWrite) {
  Start();
  host_a.FailRegistrations("mlx5_0", {.error = ENOMEM, .count = 1});
  const Lane lane = Connect();
  EXPECT_TRUE(Carries(lane));
}

TEST_F(VerbsFabricFaultTest, MemoryForProbesIsUsedAgain) {
  Start();
  for (int i = 0; i < 40; ++i) {
    const Lane lane = Connect();
    if (i % 2 == 0) {
      ASSERT_TRUE(a->fabric().CloseLane(lane.at_a).ok());
    }
  }
  EXPECT_EQ(host_a.counts("mlx5_0").registrations, 1u);
}

TEST_F(VerbsFabricFaultTest, AQueuePairThatTheDeviceDoesNotGiveIsToldWithItsLimit) {
  Start({.max_queue_pairs = 2});
  (void)Connect();
  (void)Connect();
  const absl::Status status = a->fabric().OpenLane("b", "mlx5_0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "ibv_create_qp of mlx5_0 for b: Cannot allocate"))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "at most 2 queue pairs")) << status;
}

TEST_F(VerbsFabricFaultTest, QueuesThatExceedTheLimitOnLockedMemoryAreToldWithIt) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit limit{.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  Start({.max_locked_bytes = 64 << 10});
  const absl::Status status = a->fabric().OpenLane("b", "mlx5_0").status();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_EQ(status.message(),
            "ibv_create_cq of mlx5_0, 8192 entries: Cannot allocate memory (errno 12); the limit "
            "on locked memory (ulimit -l), which queues count towards as well, is 64 KiB; the "
            "device has at most 1024 queue pairs, 1024 completion queues and 1048576 memory "
            "regions");
}

TEST_F(VerbsFabricFaultTest, ADeviceWithTinyQueuesCarriesAsMuch) {
  Start({.max_requests = 4, .max_cqe = 16, .max_inline_bytes = 0});
  const Lane lane = Connect();
  const Region from = endpoints.SourceAtA(lane, 1000);
  const Reached to = endpoints.AllocateAtB(lane, 1000);
  std::vector<Write> writes;
  for (uint64_t i = 0; i < 1000; ++i) writes.push_back({from.id, i, to.remote, i, 1});
  ASSERT_TRUE(endpoints.PostAndComplete(lane, writes, 1));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, 1000), 0);
  EXPECT_TRUE(Carries(Connect()));
}

}  // namespace
}  // namespace waybill
