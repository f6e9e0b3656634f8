// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/choice/choice_fabric.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/conformance.h"
#include "testing/fabric_conformance/endpoints.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill::testing_fabric {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;

std::unique_ptr<Fabric> MakeChoice(bool local, bool tcp) {
  std::vector<ChoiceMember> members;
  if (local) members.push_back({.fabric = *MakeLocalFabric(), .within_host = true});
  if (tcp) members.push_back({.fabric = *MakeTcpFabric()});
  return *MakeChoiceFabric(std::move(members), "");
}

Endpoints::MakeFabric Limited(bool local, uint64_t rate_limit) {
  return [=](const std::string&) {
    std::vector<ChoiceMember> members;
    if (local) members.push_back({.fabric = *MakeLocalFabric(), .within_host = true});
    members.push_back({.fabric = *MakeTcpFabric()});
    return *MakeChoiceFabric(std::move(members), "", {.rate_limit = rate_limit});
  };
}

const NetworkUnderTest kAll = {"local_and_tcp",
                               []() -> Endpoints::MakeFabric {
                                 return [](const std::string&) { return MakeChoice(true, true); };
                               },
                               absl::Milliseconds(5)};
// At its limit nothing fails that the contract lets a caller do.
const NetworkUnderTest kLimited = {"tcp_limited",
                                   []() -> Endpoints::MakeFabric { return Limited(false, 1); },
                                   absl::Milliseconds(5)};
const NetworkUnderTest kForced = {"tcp",
                                  []() -> Endpoints::MakeFabric {
                                    return
                                        [](const std::string&) { return MakeChoice(false, true); };
                                  },
                                  absl::Milliseconds(5)};
// Every second endpoint has tcp only, as if it were on another host.
const NetworkUnderTest kMixed = {"mixed",
                                 []() -> Endpoints::MakeFabric {
                                   return [joined = 0](const std::string&) mutable {
                                     return MakeChoice(joined++ % 2 == 0, true);
                                   };
                                 },
                                 absl::Milliseconds(5)};

// All endpoints but "a" have local, too, which owns their memory and does not carry their lanes to
// "a".
const NetworkUnderTest kVerbs = {
    "verbs_beside_local",
    []() -> Endpoints::MakeFabric {
      const auto network = std::make_shared<fake_verbs::FakeNetwork>();
      return [network, joined = 0](const std::string& name) mutable {
        fake_verbs::FakeHost& host = network->Host(absl::StrCat(name, joined++));
        host.AddDevice("mlx5_0");
        std::vector<ChoiceMember> members;
        if (name != "a") {
          members.push_back({.fabric = *MakeLocalFabric(), .within_host = true});
        }
        members.push_back({.fabric = *MakeVerbsFabric({.library = &host})});
        return *MakeChoiceFabric(std::move(members), "");
      };
    },
    absl::Milliseconds(5)};

TEST(RateLimit, ALaneHasRoomAgainAfterTheTimeOfItsLastPostAndWaitEndsThen) {
  constexpr uint64_t kRate = 4'000'000, kPost = 200'000;
  constexpr int kPosts = 5;
  Endpoints endpoints(Limited(/*local=*/false, kRate));
  Endpoint& a = endpoints.Join("a");
  const Lane lane = endpoints.Connect(a, endpoints.Join("b"));
  const Region from = endpoints.SourceAtA(lane, kPost);
  const Reached to = endpoints.AllocateAtB(lane, kPost);
  const absl::Time begin = SteadyNow();
  for (int i = 0; i < kPosts; ++i) {
    ASSERT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, kPost}}));
    while (!a.fabric().HasRoom(lane.at_a)) a.fabric().Wait(absl::InfiniteFuture());
  }
  const absl::Duration least = absl::Seconds(double{kPosts * kPost} / kRate);
  EXPECT_GE(SteadyNow() - begin, least - absl::Milliseconds(20));  // Pace::kCredit.
  EXPECT_THAT(a.fabric().Counts(),
              Contains(AllOf(Field(&FabricCount::name, "tcp.posted_bytes"),
                             Field(&FabricCount::value, uint64_t{kPosts * kPost}))));
}

TEST(RateLimit, WhatIsNotToWaitIsTakenAtOnce) {
  Endpoints endpoints(Limited(/*local=*/false, /*rate_limit=*/1));
  Endpoint& a = endpoints.Join("a");
  Endpoint& b = endpoints.Join("b");
  const Lane lane = endpoints.Connect(a, b);
  const Region from = endpoints.SourceAtA(lane, 4096);
  const Reached to = endpoints.AllocateAtB(lane, 4096);
  ASSERT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 4096}}));
  EXPECT_FALSE(a.fabric().HasRoom(lane.at_a));
  ASSERT_TRUE(a.fabric().Post(lane.at_a, {}, 7, 1).ok());
  EXPECT_TRUE(
      endpoints.Until([&] { return b.Count(FabricEvent::Kind::kImmediate, lane.at_b) > 0; }));
}

TEST(RateLimit, SharedMemoryHasNone) {
  Endpoints endpoints(Limited(/*local=*/true, /*rate_limit=*/1));
  Endpoint& a = endpoints.Join("a");
  const Lane lane = endpoints.Connect(a, endpoints.Join("b"));
  const Region from = endpoints.SourceAtA(lane, 4096);
  const Reached to = endpoints.AllocateAtB(lane, 4096);
  ASSERT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 4096}}));
  EXPECT_TRUE(a.fabric().HasRoom(lane.at_a));
}

INSTANTIATE_TEST_SUITE_P(Choice, FabricConformance,
                         testing::Values(kAll, kForced, kLimited, kMixed, kVerbs), NameOfNetwork);
INSTANTIATE_TEST_SUITE_P(Choice, MappingConformance, testing::Values(kAll), NameOfNetwork);

}  // namespace
}  // namespace waybill::testing_fabric
