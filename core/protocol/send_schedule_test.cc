// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/send_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

constexpr auto kRoom = [](SendLane) { return true; };

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = SendCommand::Kind;

constexpr uint64_t kBytes = 100;

Payload Posted(uint32_t id, uint32_t peer, uint32_t lane = 0) {
  return {.id = id, .lane = {peer, lane}, .size_bytes = kBytes, .way = SendWay::kStaged};
}
Payload Stored(uint32_t id, uint32_t peer, uint32_t lane = 0) {
  return {.id = id, .lane = {peer, lane}, .size_bytes = kBytes, .way = SendWay::kStored};
}
Payload Direct(uint32_t id, uint32_t peer, uint32_t lane = 0) {
  return {.id = id, .lane = {peer, lane}, .size_bytes = kBytes, .way = SendWay::kDirect};
}
Payload DigestedApart(Payload payload) {
  payload.digested_apart = true;
  return payload;
}
Payload Held(Payload payload) {
  payload.held = true;
  return payload;
}

// `count` posted payloads for the peer, named from `first` on.
void AddPosted(std::vector<Payload>& payloads, uint32_t first, uint32_t count, uint32_t peer) {
  for (uint32_t i = 0; i < count; ++i) payloads.push_back(Posted(first + i, peer));
}

// Carries the commands out, as slowly as a test wants, and writes them down. Posts are accepted
// unless the lane is full.
class Sender {
 public:
  Sender(const std::vector<uint32_t>& lane_counts, uint32_t slots)
      : Sender(lane_counts, std::make_shared<SlotPool>(slots)) {}
  // With slots that are shared with others.
  Sender(const std::vector<uint32_t>& lane_counts, std::shared_ptr<SlotPool> shared)
      : pool(std::move(shared)), schedule(pool.get()), lane_counts_(lane_counts) {
    schedule.SetPeers(lane_counts, 1000);
  }

  // Every peer takes part.
  void Begin(const std::vector<Payload>& payloads, FinishRule finish = FinishRule::kAtOnce) {
    schedule.Begin(payloads, std::vector<TakesPart>(lane_counts_.size(), TakesPart::kYes), finish);
  }
  // As Begin(), where no scale is waited for.
  std::vector<std::string> BeginAndRun(const std::vector<Payload>& payloads) {
    Begin(payloads);
    schedule.OnScalesKnown();
    schedule.OnTradeQuiet();
    return Run();
  }

  // Carries out what the schedule says now; says it in words.
  std::vector<std::string> Run() {
    std::vector<std::string> log;
    for (SendCommand command; schedule.Next(command);) {
      const std::string lane = absl::StrCat(command.lane.peer, ".", command.lane.index);
      switch (command.kind) {
        case Kind::kStore:
          log.push_back(absl::StrCat("store ", command.payload));
          break;
        case Kind::kStage:
          log.push_back(absl::StrCat("stage ", command.payload));
          slot_of[command.payload] = command.slot;
          break;
        case Kind::kPost:
          if (Post(command)) log.push_back(absl::StrCat("post ", command.payload, " on ", lane));
          break;
        case Kind::kEndLane:
          if (Post(command)) log.push_back(absl::StrCat("end ", lane));
          break;
        case Kind::kClose:
          log.push_back(absl::StrCat("close ", command.lane.peer));
          schedule.OnClosed(command.lane.peer);
          break;
        case Kind::kPeerDone:
          log.push_back(absl::StrCat("done ", command.lane.peer));
          break;
        case Kind::kCheck:
          log.push_back("check");
          break;
        case Kind::kSent:
          log.push_back("sent");
          break;
        case Kind::kQuiet:
          log.push_back("quiet");
          break;
      }
    }
    return log;
  }

  std::vector<std::string> Staged(uint32_t payload) {
    schedule.OnStaged(slot_of[payload]);
    return Run();
  }
  // Stages everything that is being staged.
  std::vector<std::string> AllStaged() {
    std::vector<std::string> all;
    for (const auto& [payload, slot] : slot_of) schedule.OnStaged(slot);
    for (std::string& line : Run()) all.push_back(std::move(line));
    return all;
  }
  // The oldest post of the lane is complete.
  std::vector<std::string> Complete(SendLane lane) {
    auto& posts = outstanding[{lane.peer, lane.index}];
    const uint32_t slot = posts.front();
    posts.erase(posts.begin());
    schedule.OnComplete(lane, slot);
    return Run();
  }
  // Stages and completes everything on lanes that are not full, until nothing moves.
  std::vector<std::string> Finish() {
    std::vector<std::string> all;
    for (bool moved = true; moved;) {
      std::vector<std::string> lines = AllStaged();
      for (auto& [lane, posts] : outstanding) {
        while (!posts.empty() && !full.contains(lane)) {
          for (std::string& line : Complete({lane.first, lane.second})) lines.push_back(line);
        }
      }
      moved = !lines.empty();
      all.insert(all.end(), lines.begin(), lines.end());
    }
    return all;
  }

  const std::shared_ptr<SlotPool> pool;
  SendSchedule schedule;
  std::map<uint32_t, uint32_t> slot_of;  // By payload.
  std::set<std::pair<uint32_t, uint32_t>> full;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> outstanding;  // Slots.

 private:
  bool Post(const SendCommand& command) {
    const std::pair lane = {command.lane.peer, command.lane.index};
    if (full.contains(lane)) {
      schedule.OnRefused(command);
      return false;
    }
    schedule.OnAccepted(command);
    outstanding[lane].push_back(command.kind == Kind::kEndLane ? SendSchedule::kNoSlot
                                                               : command.slot);
    return true;
  }

  std::vector<uint32_t> lane_counts_;
};

TEST(SendSchedule, ALaneEndsBehindAllChunksOfItsPeer) {
  Sender sender({2}, 4);
  EXPECT_THAT(sender.BeginAndRun({Posted(0, 0, 0), Posted(1, 0, 1), Posted(2, 0, 1)}),
              ElementsAre("stage 0", "stage 1", "stage 2"));
  EXPECT_THAT(sender.Staged(1), ElementsAre("post 1 on 0.1"));
  EXPECT_THAT(sender.Staged(0), ElementsAre("post 0 on 0.0"));
  EXPECT_THAT(sender.Staged(2), ElementsAre("post 2 on 0.1", "end 0.0", "end 0.1"));
  EXPECT_THAT(sender.Complete({0, 0}), IsEmpty());
  EXPECT_THAT(sender.Complete({0, 0}), IsEmpty());
  EXPECT_THAT(sender.Complete({0, 1}), IsEmpty());
  EXPECT_THAT(sender.Complete({0, 1}), IsEmpty());
  EXPECT_THAT(sender.Complete({0, 1}), ElementsAre("done 0", "sent"));
}

TEST(SendSchedule, WhatIsMappedTakesNoSlot) {
  Sender sender({2}, 1);
  EXPECT_THAT(sender.BeginAndRun({Stored(0, 0, 0), Stored(1, 0, 1)}),
              ElementsAre("store 0", "store 1"));
  sender.schedule.OnStored(0, 1);
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.OnStored(0, 1);
  EXPECT_THAT(sender.Run(), ElementsAre("end 0.0", "end 0.1"));
  EXPECT_THAT(sender.Finish(), ElementsAre("done 0", "sent"));
  EXPECT_EQ(sender.pool->high_water(), 0u);
}

TEST(SendSchedule, AFullLaneDelaysItsPeerOnly) {
  Sender sender({1, 1}, 2);
  std::vector<Payload> payloads;
  AddPosted(payloads, 0, 10, 0);
  AddPosted(payloads, 10, 10, 1);
  sender.full.insert({0, 0});
  EXPECT_THAT(sender.BeginAndRun(payloads), ElementsAre("stage 0", "stage 10"));
  const std::vector<std::string> meanwhile = sender.Finish();
  EXPECT_EQ(meanwhile.back(), "done 1");
  sender.full.clear();
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.Retry(kRoom);
  EXPECT_THAT(sender.Run(), ElementsAre("post 0 on 0.0", "post 1 on 0.0"));
  EXPECT_EQ(sender.Finish().back(), "sent");
}

TEST(SendSchedule, AFullLaneDelaysNoOtherLaneOfItsPeer) {
  Sender sender({2}, 2);
  sender.full.insert({0, 0});
  EXPECT_THAT(sender.BeginAndRun({Posted(0, 0, 0), Posted(1, 0, 0), Posted(2, 0, 0),
                                  Posted(3, 0, 1), Posted(4, 0, 1), Posted(5, 0, 1)}),
              ElementsAre("stage 0", "stage 3"));
  EXPECT_THAT(sender.Finish(), ElementsAre("post 3 on 0.1", "stage 4", "post 4 on 0.1", "stage 5",
                                           "post 5 on 0.1", "stage 1"));
}

TEST(SendSchedule, ARefusedPostIsTriedAgainOnceForEachRetry) {
  Sender sender({1}, 1);
  sender.BeginAndRun({Posted(0, 0)});
  sender.full.insert({0, 0});
  EXPECT_THAT(sender.Staged(0), IsEmpty());
  sender.schedule.Retry(kRoom);
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.full.clear();
  sender.schedule.Retry(kRoom);
  EXPECT_THAT(sender.Run(), ElementsAre("post 0 on 0.0", "end 0.0"));
}

TEST(SendSchedule, ARefusedEndIsTriedAgainOnceForEachRetry) {
  Sender sender({1}, 1);
  sender.full.insert({0, 0});
  EXPECT_THAT(sender.BeginAndRun({Stored(0, 0)}), ElementsAre("store 0"));
  sender.schedule.OnStored(0, 1);
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.full.clear();
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.Retry(kRoom);
  EXPECT_THAT(sender.Run(), ElementsAre("end 0.0"));
  EXPECT_THAT(sender.Finish(), ElementsAre("done 0", "sent"));
}

struct ShareCase {
  const char* name;
  uint32_t slots;
  std::vector<uint32_t> payloads;  // By peer.
  std::vector<uint32_t> held;      // Slots of each peer, while nothing completes.
};

class ShareTest : public testing::TestWithParam<ShareCase> {};

TEST_P(ShareTest, NoPeerHoldsMoreThanItsShareWhileAnotherNeedsSlots) {
  const auto peers = static_cast<uint32_t>(GetParam().payloads.size());
  Sender sender(std::vector<uint32_t>(peers, 1), GetParam().slots);
  std::vector<Payload> payloads;
  std::vector<uint32_t> peer_of;
  for (uint32_t p = 0; p < peers; ++p) {
    AddPosted(payloads, static_cast<uint32_t>(payloads.size()), GetParam().payloads[p], p);
  }
  sender.BeginAndRun(payloads);
  std::vector<uint32_t> held(peers, 0);
  for (const auto& [payload, slot] : sender.slot_of) ++held[payloads[payload].lane.peer];
  EXPECT_EQ(held, GetParam().held);
}

INSTANTIATE_TEST_SUITE_P(
    All, ShareTest,
    testing::Values(ShareCase{"one_peer_has_all", 4, {9}, {4}},
                    ShareCase{"two_peers_have_half_each", 4, {9, 9}, {2, 2}},
                    ShareCase{"what_is_left_over_goes_to_the_first", 5, {9, 9}, {3, 2}},
                    ShareCase{"a_small_peer_leaves_the_rest", 4, {9, 1}, {3, 1}},
                    ShareCase{"more_peers_than_slots", 2, {9, 9, 9}, {1, 1, 0}}),
    [](const auto& info) { return info.param.name; });

TEST(SendSchedule, SlotsGoRoundWhereThereAreMorePeersThanSlots) {
  Sender sender({1, 1, 1}, 1);
  std::vector<Payload> payloads;
  for (uint32_t p = 0; p < 3; ++p) AddPosted(payloads, 10 * p, 2, p);
  EXPECT_THAT(sender.BeginAndRun(payloads), ElementsAre("stage 0"));
  EXPECT_THAT(sender.Staged(0), ElementsAre("post 0 on 0.0"));
  EXPECT_THAT(sender.Complete({0, 0}), ElementsAre("stage 10"));
  EXPECT_THAT(sender.Staged(10), ElementsAre("post 10 on 1.0"));
  EXPECT_THAT(sender.Complete({1, 0}), ElementsAre("stage 20"));
  EXPECT_THAT(sender.Staged(20), ElementsAre("post 20 on 2.0"));
  EXPECT_THAT(sender.Complete({2, 0}), ElementsAre("stage 1"));
}

TEST(SendSchedule, WhatIsHeldTakesNoSlotBeforeItsRelease) {
  Sender sender({1}, 2);
  sender.Begin(
      {Held(Posted(0, 0)), Posted(1, 0), Held(Stored(2, 0)), Stored(3, 0), Held(Direct(4, 0))});
  sender.schedule.OnScalesKnown();
  sender.schedule.OnTradeQuiet();
  EXPECT_THAT(sender.Run(), ElementsAre("store 3", "stage 1"));
  sender.schedule.OnStored(0, 1);
  EXPECT_THAT(sender.Finish(), ElementsAre("post 1 on 0.0"));
  sender.schedule.Release(1);  // It was not held.
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.Release(2);
  sender.schedule.Release(0);
  sender.schedule.Release(0);
  EXPECT_THAT(sender.Run(), ElementsAre("store 2", "stage 0"));
  EXPECT_THAT(sender.Staged(0), ElementsAre("post 0 on 0.0"));
  sender.schedule.Release(4);
  EXPECT_THAT(sender.Run(), ElementsAre("post 4 on 0.0"));
  sender.schedule.OnStored(0, 1);
  EXPECT_THAT(sender.Run(), ElementsAre("end 0.0"));
  EXPECT_THAT(sender.Finish(), ElementsAre("done 0", "sent"));
}

TEST(SendSchedule, NothingIsSentBeforeTheTradeIsQuiet) {
  Sender sender({}, 1);
  sender.Begin({});
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.OnScalesKnown();
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.OnTradeQuiet();
  EXPECT_THAT(sender.Run(), ElementsAre("sent"));
}

TEST(SendSchedule, APeerThatTakesNoPartGetsNothing) {
  Sender sender({1, 1}, 2);
  sender.schedule.Begin({{Posted(0, 0), Posted(1, 1)}}, {{TakesPart::kNo, TakesPart::kYes}},
                        FinishRule::kAtOnce);
  sender.schedule.OnScalesKnown();
  sender.schedule.OnTradeQuiet();
  EXPECT_THAT(sender.Run(), ElementsAre("stage 1"));
  EXPECT_EQ(sender.Finish().back(), "sent");
}

// --- failures ---

TEST(SendSchedule, AFailedPeersSlotsReturnWhenNoThreadStagesForItAndItsLanesAreClosed) {
  Sender sender({1, 1}, 2);
  std::vector<Payload> payloads;
  AddPosted(payloads, 0, 3, 0);
  AddPosted(payloads, 10, 3, 1);
  EXPECT_THAT(sender.BeginAndRun(payloads), ElementsAre("stage 0", "stage 10"));
  EXPECT_THAT(sender.Staged(10), ElementsAre("post 10 on 1.0"));
  EXPECT_FALSE(sender.schedule.OnPeerFailed(0));
  EXPECT_THAT(sender.Run(), IsEmpty());
  EXPECT_THAT(sender.Staged(0), ElementsAre("close 0", "stage 11"));
  EXPECT_EQ(sender.Finish().back(), "sent");
}

TEST(SendSchedule, AFailedPeerIsClosedWhenTheLastThreadHasLeftItsMapping) {
  Sender sender({1}, 1);
  sender.BeginAndRun({Stored(0, 0), Stored(1, 0)});
  EXPECT_FALSE(sender.schedule.OnPeerFailed(0));
  sender.schedule.OnStored(0, 1);
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.OnStored(0, 1);
  EXPECT_THAT(sender.Run(), ElementsAre("close 0", "sent"));
}

TEST(SendSchedule, APeerThatFailsInTheMiddleOfAPostIsClosedAtOnce) {
  Sender sender({1}, 1);
  sender.BeginAndRun({Posted(0, 0)});
  sender.schedule.OnStaged(0);
  SendCommand command;
  ASSERT_TRUE(sender.schedule.Next(command));
  ASSERT_EQ(command.kind, Kind::kPost);
  EXPECT_TRUE(sender.schedule.OnPeerFailed(0));
  sender.schedule.OnClosed(0);
  EXPECT_THAT(sender.Run(), ElementsAre("sent"));
}

TEST(SendSchedule, AFailedPeerGetsNothingInLaterUpdates) {
  Sender sender({1, 1}, 2);
  EXPECT_TRUE(sender.schedule.OnPeerFailed(0));
  sender.schedule.OnClosed(0);
  EXPECT_THAT(sender.BeginAndRun({Posted(0, 0), Posted(1, 1)}), ElementsAre("stage 1"));
  EXPECT_EQ(sender.Finish().back(), "sent");
}

TEST(SendSchedule, ACompletionThatNobodyWaitsForIsIgnored) {
  Sender sender({2}, 2);
  sender.BeginAndRun({Posted(0, 0, 0), Posted(1, 0, 1)});
  sender.schedule.OnComplete({0, 0}, 0);
  sender.schedule.OnComplete({0, 0}, SendSchedule::kNoSlot);
  EXPECT_THAT(sender.AllStaged(),
              ElementsAre("post 0 on 0.0", "post 1 on 0.1", "end 0.0", "end 0.1"));
  sender.schedule.OnComplete({0, 0}, 7);
  sender.schedule.OnComplete({0, 0}, sender.slot_of[1]);  // Posted on the other lane.
  EXPECT_EQ(sender.schedule.posts_outstanding(0), 4u);
  EXPECT_EQ(sender.Finish().back(), "sent");
}

// --- the rule on NaNs and infinities ---

TEST(SendSchedule, TheEndsWaitForTheCheckWhereItIsAskedFor) {
  Sender sender({1, 1}, 2);
  sender.Begin({Posted(0, 0), Posted(1, 1)}, FinishRule::kWhenAllowed);
  sender.schedule.OnScalesKnown();
  sender.schedule.OnTradeQuiet();
  EXPECT_THAT(sender.Run(), ElementsAre("stage 0", "stage 1"));
  EXPECT_THAT(sender.Staged(0), ElementsAre("post 0 on 0.0"));
  EXPECT_THAT(sender.Staged(1), ElementsAre("post 1 on 1.0", "check"));
  EXPECT_THAT(sender.Finish(), IsEmpty());
  sender.schedule.AllowFinish();
  EXPECT_THAT(sender.Run(), ElementsAre("end 0.0", "end 1.0"));
  EXPECT_THAT(sender.Finish(), ElementsAre("done 0", "done 1", "sent"));
}

TEST(SendSchedule, WhatIsRefusedEndsByAnAbortOnly) {
  Sender sender({1}, 1);
  sender.Begin({Posted(0, 0)}, FinishRule::kWhenAllowed);
  sender.schedule.OnScalesKnown();
  sender.schedule.OnTradeQuiet();
  EXPECT_THAT(sender.Run(), ElementsAre("stage 0"));
  EXPECT_THAT(sender.Finish(), ElementsAre("post 0 on 0.0", "check"));
  sender.schedule.RefuseFinish();
  sender.schedule.AllowFinish();
  EXPECT_THAT(sender.Finish(), IsEmpty());
  sender.schedule.Abort();
  EXPECT_THAT(sender.Run(), ElementsAre("quiet"));
}

// --- the end ---

TEST(SendSchedule, AnAbortIsQuietWhenWhatWasPostedIsComplete) {
  Sender sender({1, 1}, 4);
  sender.BeginAndRun({Posted(0, 0), Posted(1, 0), Posted(2, 1), Posted(3, 1)});
  EXPECT_THAT(sender.Staged(0), ElementsAre("post 0 on 0.0"));
  sender.full.insert({1, 0});
  EXPECT_THAT(sender.Staged(2), IsEmpty());
  sender.schedule.Abort();
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.Retry(kRoom);
  EXPECT_THAT(sender.Complete({0, 0}), ElementsAre("quiet"));
  sender.full.clear();
  EXPECT_THAT(
      sender.BeginAndRun({Posted(0, 0), Posted(1, 0), Posted(2, 1), Posted(3, 1)}),
      ElementsAre("stage 0", "stage 2", "stage 1", "stage 3"));  // Every slot is free again.
}

TEST(SendSchedule, AnAbortWaitsForTheTrade) {
  Sender sender({1}, 1);
  sender.Begin({});
  sender.schedule.Abort();
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.OnTradeQuiet();
  EXPECT_THAT(sender.Run(), ElementsAre("quiet"));
}

TEST(SendSchedule, NewPeersTakeBackTheSlotsOfPostsThatNeverCompleted) {
  Sender sender({1}, 1);
  sender.BeginAndRun({Posted(0, 0)});
  EXPECT_THAT(sender.Staged(0), ElementsAre("post 0 on 0.0", "end 0.0"));
  sender.schedule.SetPeers({uint32_t{1}}, 10);
  EXPECT_THAT(sender.BeginAndRun({Posted(0, 0)}), ElementsAre("stage 0"));
}

// --- payloads that are posted from where they lie ---

TEST(DirectPayloads, NeedNoSlot) {
  Sender sender({1}, 1);
  EXPECT_THAT(sender.BeginAndRun({Direct(0, 0), Direct(1, 0)}),
              ElementsAre("post 0 on 0.0", "post 1 on 0.0", "end 0.0"));
  EXPECT_EQ(sender.schedule.counts().bytes, 2 * kBytes);
  EXPECT_EQ(sender.pool->high_water(), 0u);
}

TEST(DirectPayloads, DoNotKeepOthersFromBeingStaged) {
  Sender sender({1}, 1);
  EXPECT_THAT(sender.BeginAndRun({Direct(0, 0), Posted(1, 0)}),
              ElementsAre("stage 1", "post 0 on 0.0"));
  EXPECT_THAT(sender.Staged(1), ElementsAre("post 1 on 0.0", "end 0.0"));
}

TEST(DirectPayloads, AreOnTheirWayInABoundedNumber) {
  Sender sender({1}, 1);
  std::vector<Payload> payloads;
  for (uint32_t i = 0; i < SendSchedule::kMostDirectPosts + 2; ++i) {
    payloads.push_back(Direct(i, 0));
  }
  EXPECT_EQ(sender.BeginAndRun(payloads).size(), SendSchedule::kMostDirectPosts);
  EXPECT_THAT(sender.Complete({0, 0}), ElementsAre("post 16 on 0.0"));
  EXPECT_THAT(sender.Complete({0, 0}), ElementsAre("post 17 on 0.0", "end 0.0"));
}

TEST(DirectPayloads, AreTriedAgainWhereALaneWasFull) {
  Sender sender({1}, 1);
  sender.full.insert({0, 0});
  EXPECT_THAT(sender.BeginAndRun({Direct(0, 0), Direct(1, 0)}), IsEmpty());
  sender.full.clear();
  sender.schedule.Retry(kRoom);
  EXPECT_THAT(sender.Run(), ElementsAre("post 0 on 0.0", "post 1 on 0.0", "end 0.0"));
}

TEST(DirectPayloads, TheLaneWithTheLedgerEndsWhenTheirDigestsAreTaken) {
  Sender sender({2}, 1);
  EXPECT_THAT(sender.BeginAndRun({DigestedApart(Direct(0, 0)), Direct(1, 0, 1)}),
              ElementsAre("post 0 on 0.0", "post 1 on 0.1", "end 0.1"));
  sender.schedule.OnDigested(0);
  EXPECT_THAT(sender.Run(), ElementsAre("end 0.0"));
}

TEST(DirectPayloads, AnUpdateIsNotOverWhileTheTensorsOfAFailedPeerAreRead) {
  Sender sender({1}, 1);
  sender.BeginAndRun({DigestedApart(Direct(0, 0))});
  EXPECT_TRUE(sender.schedule.OnPeerFailed(0));
  sender.schedule.OnClosed(0);
  EXPECT_THAT(sender.Run(), IsEmpty());
  sender.schedule.OnDigested(0);
  EXPECT_THAT(sender.Run(), ElementsAre("sent"));
}

TEST(DirectPayloads, AnAbortedUpdateIsQuietWhenThoseOnTheirWayHaveArrived) {
  Sender sender({1}, 1);
  sender.BeginAndRun({DigestedApart(Direct(0, 0))});
  sender.schedule.Abort();
  sender.schedule.OnTradeQuiet();
  EXPECT_THAT(sender.Run(), IsEmpty());
  EXPECT_THAT(sender.Complete({0, 0}), ElementsAre("quiet"));
}

// --- schedules that share their slots ---

TEST(SharedSlots, TwoSchedulesHaveHalfOfThemEach) {
  const auto pool = std::make_shared<SlotPool>(4);
  Sender a({1}, pool), b({1}, pool);
  std::vector<Payload> payloads;
  AddPosted(payloads, 0, 10, 0);
  EXPECT_EQ(a.BeginAndRun(payloads).size(), 4u);
  EXPECT_THAT(b.BeginAndRun(payloads), IsEmpty());
  // Slots that the first gives back go to the second, until both have the same.
  for (uint32_t i = 0; i < 2; ++i) {
    a.Staged(i);
    EXPECT_THAT(a.Complete({0, 0}), IsEmpty());
    EXPECT_EQ(b.Run().size(), 1u);
  }
  a.Staged(2);
  EXPECT_EQ(a.Complete({0, 0}).size(), 1u);
  EXPECT_THAT(b.Run(), IsEmpty());
  EXPECT_EQ(pool->high_water(), 4u);
}

TEST(SharedSlots, AScheduleThatEndsLeavesTheOtherAllOfThem) {
  const auto pool = std::make_shared<SlotPool>(2);
  std::vector<Payload> payloads;
  AddPosted(payloads, 0, 4, 0);
  Sender a({1}, pool);
  {
    Sender b({1}, pool);
    EXPECT_EQ(b.BeginAndRun(payloads).size(), 2u);
    EXPECT_THAT(a.BeginAndRun(payloads), IsEmpty());
  }
  EXPECT_EQ(pool->in_use(), 0u);
  EXPECT_EQ(a.Run().size(), 2u);
}

// --- everything at random ---

// Payloads, and events in an order that depends on the seed. Checks each command against the rules.
class RandomSend {
 public:
  explicit RandomSend(uint32_t model_seed, uint32_t seed) : random_(seed) {
    std::mt19937 model(model_seed);
    const auto pick = [&](uint32_t most) { return static_cast<uint32_t>(model() % (most + 1)); };
    slots_ = 1 + pick(5);
    for (uint32_t peers = 1 + pick(3); peers > 0; --peers) {
      lane_counts_.push_back(1 + pick(2));
      parts_.push_back(TakesPart::kYes);
    }
    const uint32_t count = pick(40);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t peer = pick(static_cast<uint32_t>(lane_counts_.size()) - 1);
      const SendWay way =
          std::vector{SendWay::kStored, SendWay::kStaged, SendWay::kDirect}[pick(2)];
      payloads_.push_back({.id = i,
                           .lane = {peer, pick(lane_counts_[peer] - 1)},
                           .size_bytes = 1 + pick(99),
                           .way = way,
                           .held = pick(2) == 0,
                           .digested_apart = way != SendWay::kStored && pick(2) == 0});
      if (payloads_.back().digested_apart) digesting_.insert(peer);
      if (payloads_.back().held) held_.insert(i);
    }
    pool_ = std::make_unique<SlotPool>(slots_);
    schedule_ = std::make_unique<SendSchedule>(pool_.get());
    schedule_->SetPeers(lane_counts_, count);
    left_.resize(lane_counts_.size());
    storing_.resize(lane_counts_.size());
    failed_.resize(lane_counts_.size());
    for (const Payload& payload : payloads_) ++left_[payload.lane.peer];
  }

  uint32_t peers() const { return static_cast<uint32_t>(lane_counts_.size()); }

  enum class End { kSent, kQuiet, kNever };

  // Peer 0 fails after so many events; the update is aborted after so many.
  End Run(int fail_after, int abort_after) {
    schedule_->Begin(payloads_, parts_, FinishRule::kAtOnce);
    for (int events = 0; events < 20'000; ++events) {
      for (SendCommand command; schedule_->Next(command);) Check(command);
      if (sent_) return End::kSent;
      if (quiet_) return End::kQuiet;
      if (events == fail_after && schedule_->OnPeerFailed(0)) Close(0);
      if (events >= fail_after) failed_[0] = true;
      if (events == abort_after) {
        for (uint32_t& storing : storing_) storing = 0;
        std::erase_if(in_use_, [&](const auto& slot) { return !posted_.contains(slot.first); });
        staging_.clear();
        digesting_.clear();
        aborted_ = true;
        schedule_->Abort();
        schedule_->OnTradeQuiet();
      } else {
        Happen();
      }
    }
    return End::kNever;
  }

  const SendCounts& counts() const { return schedule_->counts(); }
  SendCounts ExpectedCounts() const {
    SendCounts counts;
    for (const Payload& payload : payloads_) {
      counts.bytes += payload.size_bytes;
      counts.stores += payload.way == SendWay::kStored ? 1 : 0;
    }
    for (const uint32_t lanes : lane_counts_) counts.immediates += lanes;
    return counts;
  }
  size_t slots_in_use() const { return in_use_.size(); }
  bool EverythingWentOnce() const { return gone_.size() == payloads_.size(); }

 private:
  bool Chance(uint32_t of) { return random_() % of == 0; }

  void Happen() {
    if (Chance(5)) schedule_->Retry(kRoom);
    if (Chance(20)) {
      schedule_->OnScalesKnown();
      schedule_->OnTradeQuiet();
    }
    if (!held_.empty() && Chance(3)) {
      const uint32_t id = *std::next(held_.begin(), random_() % held_.size());
      held_.erase(id);
      schedule_->Release(id);
    }
    const uint32_t peer = random_() % peers();
    if (Chance(10) && digesting_.erase(peer) > 0) schedule_->OnDigested(peer);
    if (storing_[peer] > 0) {
      --storing_[peer];
      --left_[peer];
      schedule_->OnStored(peer, 1);
    }
    if (!staging_.empty() && Chance(2)) {
      const uint32_t slot = *std::next(staging_.begin(), random_() % staging_.size());
      staging_.erase(slot);
      schedule_->OnStaged(slot);
    }
    if (!posts_.empty() && Chance(2)) {
      const auto post = std::next(posts_.begin(), random_() % posts_.size());
      const auto [lane, slot] = *post;
      posts_.erase(post);
      if (!closed_.contains(lane.peer)) {
        Free(slot);
        schedule_->OnComplete(lane, slot);
      }
    }
  }

  void Free(uint32_t slot) {
    in_use_.erase(slot);
    posted_.erase(slot);
  }

  void Close(uint32_t peer) {
    EXPECT_EQ(storing_[peer], 0u);
    for (const uint32_t slot : staging_) EXPECT_NE(in_use_[slot], peer);
    std::erase_if(in_use_, [&](const auto& slot) { return slot.second == peer; });
    closed_.insert(peer);
    schedule_->OnClosed(peer);
  }

  void Take(const SendCommand& command) {
    EXPECT_LT(command.slot, slots_);
    EXPECT_TRUE(in_use_.emplace(command.slot, command.lane.peer).second) << "slot in use";
    posted_.erase(command.slot);
    uint32_t held = 0;
    for (const auto& [slot, peer] : in_use_) held += peer == command.lane.peer ? 1 : 0;
    for (uint32_t p = 0; p < peers() && slots_ > 1; ++p) {
      if (p == command.lane.peer || failed_[p] || !HasUnstaged(p)) continue;
      EXPECT_LT(held, slots_) << "peer " << command.lane.peer << " holds all, " << p << " has work";
    }
  }

  bool HasUnstaged(uint32_t peer) const {
    return std::any_of(payloads_.begin(), payloads_.end(), [&](const Payload& payload) {
      return payload.lane.peer == peer && payload.way == SendWay::kStaged &&
             !gone_.contains(payload.id) && !held_.contains(payload.id);
    });
  }

  void CheckPayload(const SendCommand& command, SendWay way) {
    const Payload& payload = payloads_[command.payload];
    EXPECT_EQ(payload.way, way);
    EXPECT_EQ(payload.lane, command.lane);
    EXPECT_FALSE(held_.contains(payload.id));
    EXPECT_TRUE(gone_.insert(payload.id).second) << "payload " << payload.id << " twice";
  }

  bool Accept(const SendCommand& command) {
    EXPECT_FALSE(ended_.contains({command.lane.peer, command.lane.index})) << "behind the end";
    if (Chance(4)) {
      schedule_->OnRefused(command);
      return false;
    }
    schedule_->OnAccepted(command);
    const bool ends = command.kind == Kind::kEndLane;
    const uint32_t slot = ends ? SendSchedule::kNoSlot : command.slot;
    posts_.emplace_back(command.lane, slot);
    if (slot != SendSchedule::kNoSlot) posted_.insert(slot);
    if (ends) ended_.insert({command.lane.peer, command.lane.index});
    return true;
  }

  void Check(const SendCommand& command) {
    const uint32_t peer = command.lane.peer;
    EXPECT_FALSE(sent_ || quiet_);
    if (command.kind <= Kind::kEndLane) {
      EXPECT_FALSE(failed_[peer]);
      EXPECT_FALSE(aborted_);
    }
    switch (command.kind) {
      case Kind::kStore:
        ++storing_[peer];
        return CheckPayload(command, SendWay::kStored);
      case Kind::kStage:
        Take(command);
        staging_.insert(command.slot);
        return CheckPayload(command, SendWay::kStaged);
      case Kind::kPost:
        EXPECT_FALSE(staging_.contains(command.slot));
        if (!Accept(command)) return;
        --left_[peer];
        if (command.slot == SendSchedule::kNoSlot) CheckPayload(command, SendWay::kDirect);
        return;
      case Kind::kEndLane:
        EXPECT_EQ(left_[peer], 0u);
        EXPECT_TRUE(command.lane.index > 0 || !digesting_.contains(peer));
        (void)Accept(command);
        return;
      case Kind::kClose:
        return Close(peer);
      case Kind::kPeerDone:
      case Kind::kCheck:
        return;
      case Kind::kSent:
        EXPECT_TRUE(digesting_.empty());
        sent_ = true;
        return;
      case Kind::kQuiet:
        for (const auto& [lane, slot] : posts_) EXPECT_TRUE(closed_.contains(lane.peer));
        quiet_ = true;
        return;
    }
  }

  std::mt19937 random_;
  uint32_t slots_ = 0;
  std::vector<uint32_t> lane_counts_;
  std::vector<TakesPart> parts_;
  std::vector<Payload> payloads_;
  std::unique_ptr<SlotPool> pool_;
  std::unique_ptr<SendSchedule> schedule_;

  std::set<uint32_t> held_;
  bool aborted_ = false;
  bool sent_ = false;
  bool quiet_ = false;
  std::vector<uint32_t> left_;  // By peer: payloads that are neither stored nor accepted.
  std::vector<uint32_t> storing_;
  std::vector<bool> failed_;
  std::set<uint32_t> digesting_;  // Peers.
  std::set<uint32_t> closed_;
  std::map<uint32_t, uint32_t> in_use_;  // Peers by slot.
  std::set<uint32_t> staging_;
  std::set<uint32_t> posted_;
  std::vector<std::pair<SendLane, uint32_t>> posts_;
  std::set<std::pair<uint32_t, uint32_t>> ended_;
  std::set<uint32_t> gone_;
};

constexpr int kNever = -1;

TEST(SendScheduleAtRandom, EveryPayloadGoesOnceAndTheCountsAreAFunctionOfThePayloads) {
  for (uint32_t model = 0; model < 100; ++model) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(absl::StrCat("model ", model, " seed ", seed));
      RandomSend send(model, seed);
      ASSERT_EQ(send.Run(1 << 20, kNever), RandomSend::End::kSent);
      EXPECT_TRUE(send.EverythingWentOnce());
      EXPECT_EQ(send.counts(), send.ExpectedCounts());
      EXPECT_EQ(send.slots_in_use(), 0u);
    }
  }
}

TEST(SendScheduleAtRandom, AFailedPeerStopsNoOther) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    RandomSend send(seed % 100, seed);
    ASSERT_EQ(send.Run(static_cast<int>(seed % 53), kNever), RandomSend::End::kSent);
    EXPECT_EQ(send.slots_in_use(), 0u);
  }
}

TEST(SendScheduleAtRandom, AnAbortEndsWithEverythingQuiet) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    RandomSend send(seed % 100, seed);
    const RandomSend::End end = send.Run(1 << 20, static_cast<int>(seed % 53));
    ASSERT_NE(end, RandomSend::End::kNever);
    EXPECT_EQ(send.slots_in_use(), 0u);
  }
}

}  // namespace
}  // namespace waybill
