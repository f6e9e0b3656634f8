// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/receive_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace waybill {
namespace {

using Kind = ReceiveCommand::Kind;

constexpr uint64_t kPlan = 77;

UpdateId UpdateOf(uint64_t version) {
  return {.version = version,
          .sequence = static_cast<uint32_t>(version),
          .epoch = 5,
          .plan_hash = kPlan};
}

absl::Time At(int64_t seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

struct Setup {
  std::vector<ReceiveSender> senders = {{.lane_count = 1, .chunk_count = 2}};
  Mode mode = Mode::kShadow;
  Verification verification = Verification::kOn;
  uint32_t at_once = 1;
  bool passes_on = false;
};

// Carries the commands out, and writes them down. Digests and copies end when the test says so.
class Receiver {
 public:
  explicit Receiver(const Setup& setup) : schedule(setup.mode), setup_(setup) { BeginTerm(); }

  void BeginTerm() {
    schedule.SetSenders(kPlan, setup_.senders, setup_.at_once);
    schedule.set_passes_on(setup_.passes_on);
    schedule.OnConnected();
  }

  // Does one step, and returns what the schedule says then:
  //
  //   prepare V, commit V, abort V, abort unbegun V, continue V W, connect, end term, time T,
  //   read B, unread B, offers fail, compares fail, visibility fails,
  //   chunk SENDER CHUNK, end SENDER LANE, digested SENDER, lose SENDER, copied, not copied
  std::string Do(const std::string& step) {
    log_.clear();
    const std::vector<std::string> words = absl::StrSplit(step, ' ');
    const auto number = [&](size_t i) { return static_cast<uint32_t>(std::stoul(words[i])); };
    const std::string& what = words[0];
    if (what == "prepare") {
      const absl::Status status =
          schedule.Prepare(UpdateOf(number(1)), setup_.verification, At(10));
      if (!status.ok()) log_.emplace_back(status.message());
    } else if (what == "commit") {
      schedule.Commit(UpdateOf(number(1)));
    } else if (step.starts_with("abort unbegun")) {
      schedule.Abort(UpdateOf(number(2)), /*begun=*/false);
    } else if (what == "abort") {
      schedule.Abort(UpdateOf(number(1)), /*begun=*/true);
    } else if (what == "continue") {
      const absl::Status status = schedule.Continue(UpdateOf(number(1)), UpdateOf(number(2)));
      if (!status.ok()) log_.emplace_back(status.message());
    } else if (what == "connect") {
      BeginTerm();
    } else if (step == "end term") {
      schedule.EndTerm();
    } else if (what == "time") {
      now_ = At(number(1));
    } else if (what == "read") {
      read_.insert(number(1));
    } else if (what == "unread") {
      read_.erase(number(1));
    } else if (step == "offers fail") {
      offers_fail_ = true;
    } else if (step == "compares fail") {
      compares_fail_ = true;
    } else if (step == "visibility fails") {
      visibility_fails_ = true;
    } else if (what == "chunk") {
      schedule.OnChunk(number(1), {.sequence = schedule.update().sequence, .chunk = number(2)});
    } else if (what == "end") {
      schedule.OnLaneEnd(number(1), number(2), schedule.update().sequence);
    } else if (what == "digested") {
      schedule.OnDigested(number(1));
    } else if (what == "lose") {
      const uint32_t sender = number(1);
      if (schedule.waits_for_visibility(sender)) schedule.OnVisible(sender);
      schedule.OnSenderFailed(sender);
    } else if (what == "copied") {
      schedule.OnCopied(true);
    } else if (step == "not copied") {
      schedule.OnCopied(false);
    } else {
      ADD_FAILURE() << "no such step: " << step;
    }
    Run();
    return absl::StrJoin(log_, "; ");
  }

  ReceiveSchedule schedule;

 private:
  void Run() {
    schedule.Retry(now_, [this](uint32_t buffer) { return !read_.contains(buffer); });
    for (ReceiveCommand command; schedule.Next(command);) Execute(command);
  }

  void Log(const char* what, uint32_t number) { log_.push_back(absl::StrCat(what, " ", number)); }

  void Execute(const ReceiveCommand& command) {
    switch (command.kind) {
      case Kind::kOffer:
      case Kind::kContinue:
        log_.push_back(absl::StrCat(command.kind == Kind::kOffer ? "offer " : "continue ",
                                    command.buffer,
                                    schedule.is_abandoned(command.buffer) ? " renewed" : ""));
        return offers_fail_ ? schedule.OnOfferFailed() : schedule.OnOffered();
      case Kind::kExpire:
        return log_.emplace_back("expire"), void();
      case Kind::kMakeVisible:
        if (visibility_fails_) return schedule.OnSenderFailed(command.sender);
        schedule.OnVisible(command.sender);
        return;
      case Kind::kPassOn:
        return log_.push_back("pass " + absl::StrJoin(command.chunks, ",")), void();
      case Kind::kDigest:
        return log_.push_back("digest " + absl::StrJoin(command.chunks, ",")), void();
      case Kind::kCompare:
        Log("compare", command.sender);
        return compares_fail_ ? schedule.Fail() : schedule.OnVerified(command.sender);
      case Kind::kCheck:
        log_.emplace_back("check");
        return schedule.OnArrived();
      case Kind::kLacking:
        return log_.emplace_back("lacking"), void();
      case Kind::kCopy:
        return Log("copy", command.buffer);
      case Kind::kShow:
        return log_.push_back(
                   absl::StrCat("show ", command.update.version, " in ", command.buffer)),
               void();
    }
  }

  const Setup setup_;
  absl::Time now_ = At(0);
  std::set<uint32_t> read_;
  bool offers_fail_ = false;
  bool compares_fail_ = false;
  bool visibility_fails_ = false;
  std::vector<std::string> log_;
};

struct Step {
  const char* what;
  const char* then;  // The commands that follow.
};
struct ReceiveCase {
  const char* name;
  Setup setup;
  std::vector<Step> steps;
};

const Setup kOne = {};
const Setup kTwo = {.senders = {{1, 2}, {1, 1}}};
const Setup kTwoLanes = {.senders = {{2, 2}}};
const Setup kUndigested = {.verification = Verification::kOff};
const Setup kCopied = {.mode = Mode::kShadowCopy, .verification = Verification::kOff};
const Setup kInPlace = {.mode = Mode::kInPlace, .verification = Verification::kOff};
const Setup kByTwo = {.senders = {{1, 5}}, .at_once = 2};
const Setup kRelaying = {.senders = {{1, 3}}, .passes_on = true};
const Setup kRelayingUndigested = {.verification = Verification::kOff, .passes_on = true};
const Setup kNobody = {.senders = {}};

const ReceiveCase kCases[] = {
    // Admission.
    {"an_update_is_offered_at_once_where_nobody_reads", kOne, {{"prepare 1", "offer 0"}}},
    {"one_update_at_a_time",
     kOne,
     {{"prepare 1", "offer 0"}, {"prepare 2", "prepare version 2: version 1 is not decided yet"}}},
    {"one_update_waits_at_a_time",
     kOne,
     {{"read 0", ""},
      {"prepare 1", ""},
      {"prepare 2", "prepare version 2: version 1 is not decided yet"}}},
    {"versions_only_grow",
     kUndigested,
     {{"prepare 2", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"commit 2", "show 2 in 0"},
      {"prepare 2", "prepare version 2: version 2 is shown, and versions only grow"},
      {"prepare 3", "offer 1"}}},
    {"nothing_is_prepared_before_the_lanes_are_connected",
     kOne,
     {{"end term", ""},
      {"prepare 1", "prepare version 1: the lanes are not connected"},
      {"connect", ""},
      {"prepare 1", "offer 0"}}},
    {"an_offer_that_fails_leaves_nothing",
     kOne,
     {{"offers fail", ""}, {"prepare 1", "offer 0"}, {"prepare 2", "offer 0"}}},

    // Which buffer, and when.
    {"an_update_waits_for_the_readers_of_its_buffer",
     kOne,
     {{"read 0", ""}, {"prepare 1", ""}, {"unread 0", "offer 0"}}},
    {"readers_may_keep_an_update_until_its_deadline",
     kOne,
     {{"read 0", ""}, {"prepare 1", ""}, {"time 9", ""}, {"time 10", "expire"}, {"unread 0", ""}}},
    {"an_update_that_waits_can_be_aborted",
     kOne,
     {{"read 0", ""}, {"prepare 1", ""}, {"abort unbegun 1", ""}, {"unread 0", ""}}},
    {"in_shadow_the_next_update_goes_into_the_other_buffer",
     kUndigested,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"commit 1", "show 1 in 0"},
      {"read 0", ""},
      {"prepare 2", "offer 1"},
      {"end 0 0", "compare 0; check"},
      {"commit 2", "show 2 in 1"},
      {"prepare 3", ""},
      {"unread 0", "offer 0"}}},
    {"in_shadow_an_aborted_update_does_not_change_the_buffer",
     kUndigested,
     {{"prepare 1", "offer 0"}, {"abort unbegun 1", ""}, {"prepare 2", "offer 0"}}},
    {"in_place_there_is_one_buffer",
     kInPlace,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"commit 1", "show 1 in 0"},
      {"read 0", ""},
      {"prepare 2", ""},
      {"unread 0", "offer 0"}}},
    {"in_shadow_copy_readers_keep_the_copy_and_not_the_offer",
     kCopied,
     {{"read 0", ""},
      {"prepare 1", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"commit 1", ""},
      {"unread 0", "copy 0"},
      {"copied", "show 1 in 0"}}},
    {"in_shadow_copy_the_next_update_waits_for_the_copy",
     kCopied,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"commit 1", "copy 0"},
      {"prepare 2", ""},
      {"copied", "show 1 in 0"},
      {"time 1", "offer 0"}}},
    {"a_copy_that_fails_ends_the_update",
     kCopied,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"commit 1", "copy 0"},
      {"not copied", ""},
      {"prepare 2", "offer 0"}}},

    // The decision.
    {"only_what_has_arrived_is_committed",
     kUndigested,
     {{"prepare 1", "offer 0"},
      {"commit 1", ""},
      {"end 0 0", "compare 0; check"},
      {"commit 2", ""},
      {"commit 1", "show 1 in 0"},
      {"commit 1", ""}}},
    {"a_commit_is_final",
     kCopied,
     {{"read 0", ""},
      {"prepare 1", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"commit 1", ""},
      {"abort 1", ""},
      {"end term", ""},
      {"unread 0", "copy 0"},
      {"copied", "show 1 in 0"}}},
    {"an_abort_of_another_update_changes_nothing",
     kUndigested,
     {{"prepare 1", "offer 0"}, {"abort 2", ""}, {"end 0 0", "compare 0; check"}}},

    // The fence.
    {"a_buffer_is_renewed_if_a_last_write_has_not_landed",
     kTwo,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "digest 0,1"},
      {"abort 1", ""},
      {"prepare 2", "offer 0 renewed"}}},
    {"a_buffer_is_not_renewed_if_every_last_write_has_landed",
     kTwo,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "digest 0,1"},
      {"end 1 0", "digest 2"},
      {"abort 1", ""},
      {"prepare 2", "offer 0"}}},
    {"a_buffer_is_not_renewed_if_nothing_has_begun",
     kOne,
     {{"prepare 1", "offer 0"}, {"abort unbegun 1", ""}, {"prepare 2", "offer 0"}}},
    {"a_buffer_is_renewed_after_a_term_that_ended_meanwhile",
     kOne,
     {{"prepare 1", "offer 0"},
      {"end term", ""},
      {"connect", ""},
      {"prepare 2", "offer 0 renewed"}}},
    {"a_buffer_that_lacks_something_is_renewed_after_the_abort",
     kTwo,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "digest 0,1"},
      {"digested 0", "compare 0"},
      {"lose 1", "lacking"},
      {"abort 1", ""},
      {"prepare 2", "offer 0 renewed"}}},
    {"a_wrong_update_is_fenced_too",
     kTwo,
     {{"compares fail", ""},
      {"prepare 1", "offer 0"},
      {"end 0 0", "digest 0,1"},
      {"digested 0", "compare 0"},
      {"end term", ""},
      {"connect", ""},
      {"prepare 2", "offer 0 renewed"}}},
    {"a_renewal_that_fails_is_done_again",
     kOne,
     {{"prepare 1", "offer 0"},
      {"abort 1", ""},
      {"offers fail", ""},
      {"prepare 2", "offer 0 renewed"},
      {"prepare 3", "offer 0 renewed"}}},
    {"an_arrived_update_may_be_aborted_without_a_fence",
     kUndigested,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"abort 1", ""},
      {"prepare 2", "offer 0"}}},

    // Arrival and waves.
    {"without_senders_everything_is_there", kNobody, {{"prepare 1", "offer 0; check"}}},
    {"a_sender_is_verified_once_all_its_lanes_have_ended",
     kTwoLanes,
     {{"prepare 1", "offer 0"},
      {"end 0 1", ""},
      {"end 0 0", "digest 0,1"},
      {"digested 0", "compare 0; check"}}},
    {"a_chunk_is_digested_when_it_comes",
     kOne,
     {{"prepare 1", "offer 0"},
      {"chunk 0 1", "digest 1"},
      {"digested 0", ""},
      {"end 0 0", "digest 0"},
      {"digested 0", "compare 0; check"}}},
    {"a_wave_is_all_that_came_since_the_last_one_began",
     {.senders = {{1, 4}}},
     {{"prepare 1", "offer 0"},
      {"chunk 0 3", "digest 3"},
      {"chunk 0 0", ""},
      {"chunk 0 2", ""},
      {"digested 0", "digest 0,2"},
      {"end 0 0", ""},
      {"digested 0", "digest 1"},
      {"digested 0", "compare 0; check"}}},
    {"senders_have_waves_of_their_own",
     kTwo,
     {{"prepare 1", "offer 0"}, {"chunk 0 0", "digest 0"}, {"chunk 1 0", "digest 2"}}},
    {"a_chunk_counts_once",
     kOne,
     {{"prepare 1", "offer 0"},
      {"chunk 0 0", "digest 0"},
      {"chunk 0 0", ""},
      {"digested 0", ""},
      {"end 0 0", "digest 1"},
      {"digested 0", "compare 0; check"}}},
    {"a_chunk_that_the_plan_does_not_have_is_ignored",
     kOne,
     {{"prepare 1", "offer 0"}, {"chunk 0 2", ""}}},
    {"a_wave_is_as_large_as_a_device_wants_but_for_the_last",
     kByTwo,
     {{"prepare 1", "offer 0"},
      {"chunk 0 0", ""},
      {"chunk 0 1", "digest 0,1"},
      {"digested 0", ""},
      {"chunk 0 2", ""},
      {"chunk 0 3", "digest 2,3"},
      {"digested 0", ""},
      {"end 0 0", "digest 4"},
      {"digested 0", "compare 0; check"}}},
    {"without_digests_only_the_ledger_is_compared",
     kUndigested,
     {{"prepare 1", "offer 0"}, {"chunk 0 0", ""}, {"end 0 0", "compare 0; check"}}},
    {"a_wrong_part_fails_the_update_at_once",
     kTwo,
     {{"compares fail", ""},
      {"prepare 1", "offer 0"},
      {"end 1 0", "digest 2"},
      {"digested 1", "compare 1"},
      {"end 0 0", ""}}},

    // Passing chunks on.
    {"chunks_are_passed_on_before_they_are_verified",
     kRelaying,
     {{"prepare 1", "offer 0"},
      {"chunk 0 1", "pass 1; digest 1"},
      {"chunk 0 2", "pass 2"},
      {"end 0 0", "pass 0"},
      {"digested 0", "digest 2,0"}}},
    {"without_digests_a_part_is_passed_on_once_all_of_it_is_here",
     kRelayingUndigested,
     {{"prepare 1", "offer 0"}, {"chunk 0 1", ""}, {"end 0 0", "pass 0,1; compare 0; check"}}},
    {"nothing_of_a_lost_sender_is_passed_on",
     kRelaying,
     {{"prepare 1", "offer 0"}, {"lose 0", "lacking"}, {"chunk 0 0", ""}}},

    // Lost senders.
    {"a_lost_sender_is_lacking_once_the_others_are_verified",
     kTwo,
     {{"prepare 1", "offer 0"},
      {"lose 1", ""},
      {"end 0 0", "digest 0,1"},
      {"digested 0", "compare 0; lacking"}}},
    {"a_sender_that_fails_after_its_last_write_is_not_lost",
     kTwo,
     {{"prepare 1", "offer 0"},
      {"end 1 0", "digest 2"},
      {"lose 1", ""},
      {"end 0 0", "digest 0,1"},
      {"digested 1", "compare 1"},
      {"digested 0", "compare 0; check"}}},
    {"a_sender_whose_writes_cannot_be_made_visible_is_lost",
     kOne,
     {{"visibility fails", ""}, {"prepare 1", "offer 0"}, {"end 0 0", "lacking"}}},
    {"what_is_lacking_is_brought_by_another_plan",
     kTwo,
     {{"prepare 1", "offer 0"},
      {"lose 0", ""},
      {"end 1 0", "digest 2"},
      {"digested 1", "compare 1; lacking"},
      {"end term", ""},
      {"connect", ""},
      {"continue 1 2", "continue 0"},
      {"end 0 0", "digest 0,1"},
      {"end 1 0", "digest 2"},
      {"digested 0", "compare 0"},
      {"digested 1", "compare 1; check"},
      {"commit 2", "show 2 in 0"}}},
    {"an_arrived_update_goes_on_by_another_name",
     kUndigested,
     {{"prepare 1", "offer 0"},
      {"end 0 0", "compare 0; check"},
      {"end term", ""},
      {"connect", ""},
      {"continue 1 2", ""},
      {"commit 2", "show 2 in 0"}}},
    {"only_what_is_kept_is_continued",
     kOne,
     {{"continue 1 2", "continue version 2: nothing of it is kept"},
      {"prepare 1", "offer 0"},
      {"continue 1 2", "continue version 2: nothing of it is kept"}}},
};

class ReceiveScheduleTest : public testing::TestWithParam<ReceiveCase> {};

TEST_P(ReceiveScheduleTest, SaysWhatToDo) {
  const ReceiveCase& c = GetParam();
  Receiver receiver(c.setup);
  for (const Step& step : c.steps) EXPECT_EQ(receiver.Do(step.what), step.then) << step.what;
}

INSTANTIATE_TEST_SUITE_P(Cases, ReceiveScheduleTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ReceiveSchedule, ChunksOfAnotherUpdateAreIgnored) {
  Receiver receiver(kOne);
  receiver.Do("prepare 1");
  receiver.schedule.OnChunk(0, {.sequence = 0, .chunk = 0});
  EXPECT_EQ(receiver.Do("time 1"), "");
  EXPECT_EQ(receiver.schedule.early_chunks(), 0u);
}

// Everything happens in a random order, and threads take as long as they like. What the schedule
// says is compared with the definition, which looks only at what has happened.
TEST(ReceiveSchedule, DigestsAndPassesOnEverythingOnceInAnyOrder) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&random](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    struct Truth {
      ReceiveSender sender;
      uint32_t first_chunk = 0;
      uint32_t lanes_ended = 0;
      bool lost = false;
      bool wave_runs = false;
      bool verified = false;
      std::set<uint32_t> come, passed_on, digested;
    };
    std::vector<Truth> truths(1 + below(3));
    std::vector<ReceiveSender> senders;
    uint32_t chunks = 0;
    for (Truth& truth : truths) {
      truth.sender = {.lane_count = 1 + below(3), .chunk_count = 1 + below(6)};
      truth.first_chunk = chunks;
      chunks += truth.sender.chunk_count;
      senders.push_back(truth.sender);
    }
    const bool passes_on = below(2) == 0;
    const uint32_t at_once = 1 + below(3);
    ReceiveSchedule schedule(Mode::kShadow);
    schedule.SetSenders(kPlan, senders, at_once);
    schedule.set_passes_on(passes_on);
    schedule.OnConnected();
    ASSERT_TRUE(schedule.Prepare(UpdateOf(1), Verification::kOn, At(1)).ok());
    schedule.Retry(At(0), [](uint32_t) { return true; });

    const auto all_come = [](const Truth& t) { return t.lanes_ended == t.sender.lane_count; };
    const auto take = [](absl::Span<const uint32_t> from, const Truth& t, std::set<uint32_t>& to) {
      for (const uint32_t chunk : from) {
        EXPECT_TRUE(t.come.contains(chunk)) << "chunk " << chunk << " has not come";
        EXPECT_TRUE(to.insert(chunk).second) << "chunk " << chunk << " twice";
      }
    };
    bool over = false;
    for (int steps = 0; !over; ++steps) {
      ASSERT_LT(steps, 1000) << "seed " << seed;
      for (ReceiveCommand command; schedule.Next(command);) {
        Truth& truth = truths[command.sender];
        if (command.kind == Kind::kOffer) {
          schedule.OnOffered();
        } else if (command.kind == Kind::kMakeVisible) {
          schedule.OnVisible(command.sender);
        } else if (command.kind == Kind::kPassOn) {
          EXPECT_TRUE(passes_on);
          take(command.chunks, truth, truth.passed_on);
        } else if (command.kind == Kind::kDigest) {
          EXPECT_FALSE(std::exchange(truth.wave_runs, true));
          EXPECT_TRUE(all_come(truth) || command.chunks.size() >= at_once);
          take(command.chunks, truth, truth.digested);
        } else if (command.kind == Kind::kCompare) {
          EXPECT_TRUE(all_come(truth) && !truth.wave_runs);
          EXPECT_EQ(truth.digested.size(), truth.sender.chunk_count);
          truth.verified = true;
          schedule.OnVerified(command.sender);
        } else {
          ASSERT_TRUE(command.kind == Kind::kCheck || command.kind == Kind::kLacking);
          over = true;
          bool lacking = false;
          for (uint32_t s = 0; s < truths.size(); ++s) {
            EXPECT_TRUE(truths[s].verified || truths[s].lost);
            EXPECT_EQ(schedule.is_lost(s), truths[s].lost);
            lacking = lacking || truths[s].lost;
            if (passes_on && truths[s].verified) {
              EXPECT_EQ(truths[s].passed_on.size(), truths[s].sender.chunk_count);
            }
          }
          EXPECT_EQ(command.kind == Kind::kLacking, lacking);
          if (command.kind == Kind::kCheck) schedule.OnArrived();
        }
      }
      const uint32_t s = below(static_cast<uint32_t>(truths.size()));
      Truth& truth = truths[s];
      switch (below(12)) {
        case 0:  // Once it has been lost nothing comes from it.
          if (truth.lost) break;
          if (below(3) == 0) {
            schedule.OnSenderFailed(s);
            truth.lost = !all_come(truth);
            if (truth.lost) truth.wave_runs = false;
          }
          break;
        case 1:
        case 2:
        case 3:
          if (truth.lost || all_come(truth)) break;
          schedule.OnLaneEnd(s, truth.lanes_ended++, 1);
          if (!all_come(truth)) break;
          for (uint32_t c = 0; c < truth.sender.chunk_count; ++c) {
            truth.come.insert(truth.first_chunk + c);
          }
          break;
        case 4:
        case 5:
        case 6:
          if (truth.wave_runs) schedule.OnDigested(s);
          truth.wave_runs = false;
          break;
        default: {
          if (truth.lost) break;
          const uint32_t chunk = below(truth.sender.chunk_count);
          schedule.OnChunk(s, {.sequence = 1, .chunk = chunk});
          truth.come.insert(truth.first_chunk + chunk);
        }
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace waybill
