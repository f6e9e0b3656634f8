// SPDX-License-Identifier: Apache-2.0

// Jobs in which only what changed since the version before travels.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/fabric/choice/make_fabric.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

constexpr uint64_t kTensorBytes = Job::kRows * Job::kColumns * 2;

struct Case {
  const char* name;
  Mode mode = Mode::kShadow;
  bool relays = false;
  uint32_t threads = 1;
  Changes changes = Changes::kAlways;
};

class ChangesTest : public testing::TestWithParam<Case> {
 protected:
  static JobOptions Options() {
    JobOptions options{.trainers = 2,
                       .workers = 3,
                       .groups = {"a", "a", "b"},
                       .mode = GetParam().mode,
                       .relays = GetParam().relays};
    options.make_fabric = [](const std::string&) {
      return *MakeFabric({.forced = FabricKind::kTcp, .host = "127.0.0.1"});
    };
    return options;
  }

  void Join(uint32_t trainers_with_changes = 2) {
    for (uint32_t t = 0; t < 2; ++t) {
      SenderEngineOptions& engine = job_.trainer_options(t).engine;
      engine.images = true;
      if (t < trainers_with_changes) engine.changes = GetParam().changes;
      engine.stage_threads = GetParam().threads;
      engine.announced_bytes = 1;
    }
    ASSERT_EQ(job_.StartController().message(), "");
    ASSERT_EQ(job_.JoinAll().message(), "");
  }
  void Publish(uint64_t version, const std::vector<uint32_t>& workers) {
    for (const absl::Status& status : job_.PublishAll(version)) EXPECT_EQ(status.message(), "");
    for (const uint32_t w : workers) {
      EXPECT_EQ(job_.worker(w)->AwaitShown(version, absl::Seconds(20)).message(), "");
      EXPECT_TRUE(job_.Shows(w, version)) << w;
    }
  }
  uint64_t Completed(uint32_t w) { return job_.worker(w)->report().counts.completed_bytes; }
  uint64_t Spared() {
    uint64_t spared = 0;
    for (uint32_t t = 0; t < 2; ++t) spared += job_.trainer(t)->report().total.spared_bytes;
    return spared;
  }
  // Half of the columns; with relays all, of which the trainers bring a part.
  bool CompletesAll(uint32_t w, uint64_t versions) {
    const uint64_t bytes = w == 2 ? kTensorBytes : kTensorBytes / 2;
    if (GetParam().relays && w < 2) return Completed(w) > 0;
    return Completed(w) == versions * bytes;
  }

  Job job_{Options()};
};

TEST_P(ChangesTest, TheFirstVersionTravelsWholeAndLaterOnesAreCompleted) {
  Join();
  Publish(1, {0, 1, 2});
  EXPECT_EQ(Spared(), 0u);
  for (uint64_t version = 2; version <= 6; ++version) Publish(version, {0, 1, 2});
  for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(CompletesAll(w, 5)) << w << ": " << Completed(w);
  EXPECT_GT(Spared(), 0u);
}

TEST_P(ChangesTest, AGroupThatHasMissedAVersionGetsTheNextOneWhole) {
  Join();
  for (uint64_t version = 1; version <= 3; ++version) Publish(version, {0, 1, 2});
  EXPECT_TRUE(CompletesAll(2, 2)) << Completed(2);
  job_.worker(2).reset();
  Publish(4, {0, 1});
  ASSERT_EQ(job_.JoinWorker(2).message(), "");
  for (uint64_t version = 5; version <= 7; ++version) Publish(version, {0, 1, 2});
  // It caught up with version 4, or began with 5.
  EXPECT_TRUE(Completed(2) == 2 * kTensorBytes || Completed(2) == 3 * kTensorBytes) << Completed(2);
}

TEST_P(ChangesTest, ATrainerWithoutThemSendsItsPartWhole) {
  Join(/*trainers_with_changes=*/1);
  for (uint64_t version = 1; version <= 4; ++version) Publish(version, {0, 1, 2});
  EXPECT_EQ(Completed(2), 3 * kTensorBytes / 2);
}

TEST_P(ChangesTest, WithoutDigestsEverythingTravelsWhole) {
  Join();
  for (uint64_t version = 1; version <= 3; ++version) {
    for (const absl::Status& status :
         job_.PublishAll(version, {.timeout = absl::Seconds(20), .digests = Digests::kOff})) {
      EXPECT_EQ(status.message(), "");
    }
    EXPECT_EQ(job_.worker(2)->AwaitShown(version, absl::Seconds(20)).message(), "");
  }
  EXPECT_EQ(Spared(), 0u);
}

TEST_P(ChangesTest, AVersionWhoseBaseWasDamagedIsShownNevertheless) {
  Join();
  for (uint64_t version = 1; version <= 2; ++version) Publish(version, {0, 1, 2});
  {
    const auto snapshot = job_.worker(2)->TakeSnapshot("vandal");
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    const_cast<std::byte&>(snapshot->region(0)[7]) ^= std::byte{1};
  }
  Publish(3, {0, 1, 2});
  const auto outcomes = job_.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_EQ(outcomes->size(), 2u);
  for (const GroupOutcome& outcome : *outcomes) EXPECT_EQ(outcome.status.message(), "");
  EXPECT_EQ(job_.worker(2)->report().counts.wrong_bases, 1u);
  const uint64_t completed = Completed(2);
  for (uint64_t version = 4; version <= 5; ++version) Publish(version, {0, 1, 2});
  EXPECT_EQ(Completed(2), completed);
  EXPECT_TRUE(CompletesAll(0, 4)) << Completed(0);
}

class ChosenChanges : public ChangesTest {};

TEST_P(ChosenChanges, WhatChangedIsTriedAndEveryVersionIsWhole) {
  Join();
  for (uint64_t version = 1; version <= 2; ++version) Publish(version, {0, 1, 2});
  for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(CompletesAll(w, 1)) << w << ": " << Completed(w);
  for (uint64_t version = 3; version <= 20; ++version) Publish(version, {0, 1, 2});
}

INSTANTIATE_TEST_SUITE_P(Jobs, ChosenChanges,
                         testing::Values(Case{.name = "auto", .changes = Changes::kAuto}),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Jobs, ChangesTest,
                         testing::Values(Case{"shadow"},
                                         Case{"progress_thread", Mode::kShadow, false, 0},
                                         Case{"shadow_copy", Mode::kShadowCopy},
                                         Case{"relays", Mode::kShadow, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
