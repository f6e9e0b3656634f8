// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/lane_choice.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace waybill::choice {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);
const absl::Time kStart = absl::UnixEpoch();
const absl::Status kWhy = absl::UnavailableError("no cable");

LaneChoice Leader() { return LaneChoice({"local", "verbs", "tcp"}, true, kPatience); }
LaneChoice Follower() { return LaneChoice({"local", "verbs", "tcp"}, false, kPatience); }

TEST(LaneChoice, TheLeaderAsksOnTheBestOnceEveryBetterOneHasFailed) {
  LaneChoice choice = Leader();
  choice.OnUp(2, kStart);
  EXPECT_EQ(choice.TakeToPropose(), std::nullopt);
  choice.OnUp(1, kStart);
  EXPECT_EQ(choice.TakeToPropose(), std::nullopt);
  choice.OnFailed(0, kWhy);
  EXPECT_EQ(choice.TakeToPropose(), 1u);
  EXPECT_EQ(choice.TakeToPropose(), std::nullopt);
  EXPECT_EQ(choice.chosen(), std::nullopt);
  choice.OnProposalSent(1);  // It was taken by the network; the answer counts.
  EXPECT_EQ(choice.chosen(), std::nullopt);
  choice.OnProposal(1);
  EXPECT_EQ(choice.chosen(), 1u);
  EXPECT_EQ(choice.WhyNoBetter(), "local: no cable");
}

TEST(LaneChoice, AWayThatIsUpAndCarriesNothingGivesPlaceToTheNext) {
  LaneChoice choice = Leader();
  choice.OnFailed(0, kWhy);
  choice.OnUp(1, kStart);
  choice.OnUp(2, kStart);
  EXPECT_EQ(choice.TakeToPropose(), 1u);
  choice.OnFailed(1, absl::UnavailableError("retry exceeded"));
  EXPECT_EQ(choice.TakeToPropose(), 2u);
  choice.OnProposal(1);  // Late, and of no use.
  EXPECT_EQ(choice.chosen(), std::nullopt);
  choice.OnProposal(2);
  EXPECT_EQ(choice.chosen(), 2u);
  EXPECT_EQ(choice.WhyNoBetter(), "local: no cable; verbs: retry exceeded");
}

TEST(LaneChoice, BetterWaysMayTakeNoLongerThanPatience) {
  LaneChoice choice = Leader();
  choice.OnUp(2, kStart);
  choice.OnTime(kStart + kPatience - absl::Nanoseconds(1));
  EXPECT_EQ(choice.TakeToPropose(), std::nullopt);
  choice.OnTime(kStart + kPatience);
  EXPECT_EQ(choice.TakeToPropose(), 2u);
  EXPECT_TRUE(choice.failed(0));
  EXPECT_TRUE(choice.failed(1));
  EXPECT_FALSE(choice.failed(2));
}

TEST(LaneChoice, AnAnswerMayTakeNoLongerEither) {
  LaneChoice choice = Leader();
  choice.OnFailed(0, kWhy);
  choice.OnUp(1, kStart);
  EXPECT_EQ(choice.TakeToPropose(), 1u);
  choice.OnUp(2, kStart + kPatience / 2);
  choice.OnTime(kStart + kPatience);
  EXPECT_EQ(choice.TakeToPropose(), 2u);
  choice.OnTime(kStart + kPatience + kPatience);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnavailable);
}

TEST(LaneChoice, WithNoWayLeftItSaysWhyEachFailed) {
  for (LaneChoice choice : {Leader(), Follower()}) {
    choice.OnFailed(2, kWhy);
    choice.OnFailed(0, absl::UnavailableError("another host"));
    EXPECT_TRUE(choice.status().ok());
    choice.OnFailed(1, absl::UnavailableError("no device"));
    EXPECT_EQ(choice.status().message(),
              "no fabric reaches it: local: another host; verbs: no device; tcp: no cable");
  }
}

TEST(LaneChoice, TheOtherEndAnswersWhereItIsAskedAndIsSureWhenTheAnswerWentOut) {
  LaneChoice choice = Follower();
  choice.OnUp(0, kStart);
  choice.OnUp(1, kStart);
  EXPECT_EQ(choice.TakeToPropose(), std::nullopt);
  choice.OnProposal(1);
  EXPECT_EQ(choice.TakeToPropose(), 1u);
  EXPECT_EQ(choice.chosen(), std::nullopt);
  choice.OnProposalSent(1);
  EXPECT_EQ(choice.chosen(), 1u);
}

// Two ends and three ways, any of which may fail at any time before it is chosen, events in any
// order: both ends choose the same way, or not both of them choose.
TEST(LaneChoice, BothEndsChooseTheSame) {
  std::mt19937 random(7);
  int agreed = 0;
  for (int round = 0; round < 20'000; ++round) {
    LaneChoice ends[2] = {Leader(), Follower()};
    bool dead[3] = {};
    struct Post {
      int to;
      size_t way;
    };
    std::vector<Post> posts;
    bool told_up[2][3] = {};
    bool told_dead[2][3] = {};
    for (int step = 0; step < 60; ++step) {
      const int end = static_cast<int>(random() % 2);
      const size_t way = random() % 3;
      switch (random() % 8) {
        case 0:
          if (random() % 4 == 0 && ends[0].chosen() != way && ends[1].chosen() != way) {
            dead[way] = true;
          }
          break;
        case 1:
          if (dead[way] && !std::exchange(told_dead[end][way], true)) ends[end].OnFailed(way, kWhy);
          break;
        case 2:
          if (!dead[way] && !std::exchange(told_up[end][way], true)) ends[end].OnUp(way, kStart);
          break;
        default:
          if (posts.empty()) break;
          const Post post = posts.front();
          posts.erase(posts.begin());
          if (dead[post.way]) break;
          ends[post.to].OnProposal(post.way);
          ends[1 - post.to].OnProposalSent(post.way);
      }
      for (int e = 0; e < 2; ++e) {
        while (const auto i = ends[e].TakeToPropose()) posts.push_back({1 - e, *i});
      }
    }
    if (ends[0].chosen() && ends[1].chosen()) {
      ASSERT_EQ(*ends[0].chosen(), *ends[1].chosen());
      ++agreed;
    }
  }
  EXPECT_GT(agreed, 5'000);
}

}  // namespace
}  // namespace waybill::choice
