// SPDX-License-Identifier: Apache-2.0

// Trainers that publish from images of their tensors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/fabric/choice/make_fabric.h"
#include "testing/cluster/quantised_model.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

using ::testing::HasSubstr;

class Images : public testing::TestWithParam<uint32_t> {
 protected:
  void Join(std::vector<uint32_t> workers) {
    for (uint32_t t = 0; t < 2; ++t) {
      job_.trainer_options(t).engine.images = true;
      job_.trainer_options(t).engine.stage_threads = GetParam();
    }
    ASSERT_EQ(job_.StartController().message(), "");
    std::vector<std::thread> joins;
    for (uint32_t t = 0; t < 2; ++t) {
      joins.emplace_back([&, t] { EXPECT_EQ(job_.JoinTrainer(t).message(), ""); });
    }
    for (const uint32_t w : workers) {
      joins.emplace_back([&, w] { EXPECT_EQ(job_.JoinWorker(w).message(), ""); });
    }
    for (std::thread& join : joins) join.join();
  }
  // Publishes, and trains on at once.
  void PublishAndTrainOn(uint64_t version) {
    for (const absl::Status& status : job_.PublishAll(version)) EXPECT_EQ(status.message(), "");
    job_.Fill(60'000 + version);
  }
  // Keeps worker w's part of the image from being sent.
  void NeverAnswerPrepare(uint32_t w) {
    job_.handler(w) = [](const Notice&, const WorkerOptions::Answer&) {};
  }
  void ExpectShown(uint32_t w, uint64_t version) {
    EXPECT_EQ(job_.worker(w)->AwaitShown(version, absl::Seconds(20)).message(), "");
    EXPECT_TRUE(job_.Shows(w, version)) << w;
  }

  explicit Images(std::set<uint32_t> fetching = {}, std::set<std::string> required = {})
      : job_({.trainers = 2,
              .workers = 2,
              .groups = {"a", "b"},
              .fetching = std::move(fetching),
              .required = std::move(required)}) {}

  Job job_;
};

// Worker 1 fetches.
class FetchedImages : public Images {
 protected:
  FetchedImages() : Images({1}) {}
};

// Its group is required.
class RequiredFetchedImages : public Images {
 protected:
  RequiredFetchedImages() : Images({1}, {"b"}) {}
};

TEST_P(Images, TensorsMayChangeWhileTheVersionIsOnItsWay) {
  Join({0, 1});
  for (uint64_t version = 1; version <= 8; ++version) PublishAndTrainOn(version);
  for (uint32_t w = 0; w < 2; ++w) ExpectShown(w, 8);
}

TEST_P(Images, AGroupThatJoinsGetsTheNewestVersionThoughNobodyShowsItAndTheTensorsHaveChanged) {
  Join({0});
  PublishAndTrainOn(1);
  ExpectShown(0, 1);
  job_.worker(0).reset();  // Nobody can lend it.
  ASSERT_EQ(job_.JoinWorker(1).message(), "");
  ExpectShown(1, 1);
  PublishAndTrainOn(2);
  ExpectShown(1, 2);
}

TEST_P(Images, APublishThatIsRefusedLeavesTheNewestVersionAsItIs) {
  Join({0});
  PublishAndTrainOn(1);
  ExpectShown(0, 1);
  EXPECT_THAT(std::string(job_.trainer(0)->Publish(1, {}).message()),
              HasSubstr("version 1 was published; versions only grow"));
  job_.worker(0).reset();
  ASSERT_EQ(job_.JoinWorker(1).message(), "");
  ExpectShown(1, 1);
}

TEST_P(FetchedImages, AWorkerFetchesTheNewestVersionAndNoPublishWaitsForIt) {
  Join({0, 1});
  for (uint64_t version = 1; version <= 4; ++version) PublishAndTrainOn(version);
  ExpectShown(0, 4);
  EXPECT_EQ(job_.worker(1)->shown_version(), 0u);
  EXPECT_EQ(*job_.worker(1)->Fetch(absl::Seconds(20)), 4u);
  EXPECT_TRUE(job_.Shows(1, 4));
  EXPECT_EQ(*job_.worker(1)->Fetch(absl::Seconds(20)), 4u);  // There is no newer one.
  PublishAndTrainOn(5);
  EXPECT_EQ(*job_.worker(1)->Fetch(absl::Seconds(20), /*at_least=*/5), 5u);
  EXPECT_TRUE(job_.Shows(1, 5));
  EXPECT_EQ(job_.worker(0)->Fetch(absl::Seconds(1)).status().message(),
            "fetch: versions come to this worker as they are published");
}

TEST_P(FetchedImages, VersionsAreFetchedThoughNobodyIsSentAny) {
  Join({1});
  const absl::Status none = job_.worker(1)->Fetch(absl::Milliseconds(100)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(none)) << none;
  for (uint64_t version = 1; version <= 3; ++version) {
    PublishAndTrainOn(version);
    EXPECT_EQ(*job_.worker(1)->Fetch(absl::Seconds(20), version), version);
    EXPECT_TRUE(job_.Shows(1, version));
  }
}

TEST_P(RequiredFetchedImages, APublishWaitsUntilTheGroupShowsAVersionThatIsNewEnough) {
  Join({0, 1});
  const PublishOptions bounded = {.timeout = absl::Seconds(20), .max_behind = 1};
  for (const absl::Status& status : job_.PublishAll(1, bounded)) EXPECT_EQ(status.message(), "");
  ExpectShown(0, 1);
  for (const absl::Status& late :
       job_.PublishAll(2, {.timeout = absl::Milliseconds(200), .max_behind = 1})) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    EXPECT_EQ(late.message(),
              "publish version 2: group b is 2 versions behind, at version 0, and max_behind is 1");
  }
  ExpectShown(0, 2);
  std::thread publish([&] {
    for (const absl::Status& status : job_.PublishAll(3, bounded)) EXPECT_EQ(status.message(), "");
  });
  EXPECT_GE(*job_.worker(1)->Fetch(absl::Seconds(20)), 2u);
  publish.join();
  ExpectShown(0, 3);
}

TEST_P(Images, APublishWaitsForTheImageUntilItsOwnDeadline) {
  NeverAnswerPrepare(0);
  Join({0});
  EXPECT_EQ(job_.trainer(0)->Publish(1, {.timeout = absl::Seconds(20)}).message(), "");
  const absl::Status late = job_.trainer(0)->Publish(2, {.timeout = absl::Milliseconds(200)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("publish version 2: the image of an earlier version was still being sent"));
}

TEST_P(Images, AVersionIsKeptForWhoComesThoughNobodyIsHere) {
  Join({0});
  PublishAndTrainOn(1);
  ExpectShown(0, 1);
  job_.worker(0).reset();
  for (uint64_t version = 2; version <= 4; ++version) PublishAndTrainOn(version);
  ASSERT_EQ(job_.JoinWorker(1).message(), "");
  ExpectShown(1, 4);
}

TEST_P(Images, WhatFailsAfterThePublishIsToldWithTheOutcome) {
  Join({0, 1});
  EXPECT_EQ(job_.trainer(0)->Publish(1, {.timeout = absl::Milliseconds(300)}).message(), "");
  const absl::Status told = job_.trainer(0)->AwaitArrived(absl::Seconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("waiting for publish() by trainer 1"));
  PublishAndTrainOn(2);
  for (uint32_t w = 0; w < 2; ++w) ExpectShown(w, 2);
}

TEST_P(Images, ATrainerThatLeavesEndsWhatWaits) {
  NeverAnswerPrepare(0);
  Join({0});
  EXPECT_EQ(job_.trainer(0)->Publish(1, {.timeout = absl::Seconds(20)}).message(), "");
  absl::Status waiting;
  std::thread publish(
      [&] { waiting = job_.trainer(0)->Publish(2, {.timeout = absl::Seconds(20)}); });
  job_.trainer(0)->Leave();
  publish.join();
  EXPECT_FALSE(waiting.ok());
}

// Eight groups of one worker each, over TCP.
class SharedImages : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint64_t kTensorBytes = Job::kRows * Job::kColumns * 2;

  static JobOptions Options(std::shared_ptr<const ClusterModel> model) {
    JobOptions options{.trainers = 2,
                       .workers = 8,
                       .groups = {"a", "b", "c", "d", "e", "f", "g", "h"},
                       .model = std::move(model)};
    options.make_fabric = [](const std::string&) {
      return *MakeFabric({.forced = FabricKind::kTcp, .host = "127.0.0.1"});
    };
    return options;
  }
  void Join(bool changes = false) {
    for (uint32_t t = 0; t < 2; ++t) {
      SenderEngineOptions& engine = job_.trainer_options(t).engine;
      engine.images = true;
      if (changes) engine.changes = Changes::kAlways;
      engine.stage_threads = GetParam();
      engine.announced_bytes = 1;
    }
    ASSERT_EQ(job_.StartController().message(), "");
    ASSERT_EQ(job_.JoinAll().message(), "");
  }
  void Publish(uint64_t version) {
    for (const absl::Status& status : job_.PublishAll(version)) EXPECT_EQ(status.message(), "");
    for (uint32_t w = 0; w < 8; ++w) {
      EXPECT_EQ(job_.worker(w)->AwaitShown(version, absl::Seconds(20)).message(), "");
      EXPECT_TRUE(job_.Shows(w, version)) << w;
    }
  }
  // Expects that so many bytes are staged by now. A version is often shown before its trainers have
  // heard that all of it has arrived, and they count it only then.
  void ExpectStaged(uint64_t bytes) {
    const auto staged = [this] {
      return job_.trainer(0)->report().total.staged_bytes +
             job_.trainer(1)->report().total.staged_bytes;
    };
    while (staged() < bytes) std::this_thread::yield();
    EXPECT_EQ(staged(), bytes);
  }

  explicit SharedImages(std::shared_ptr<const ClusterModel> model = nullptr)
      : job_(Options(std::move(model))) {}

  Job job_;
};

// Each worker holds all of a matrix, quantised in blocks of 16 x 16.
class SharedQuantisedImages : public SharedImages {
 protected:
  static constexpr int64_t kColumns = 40;
  static constexpr uint64_t kQuantisedBytes = 48 * kColumns;
  static constexpr uint64_t kScaleBytes = 3 * 3 * 4;

  explicit SharedQuantisedImages(int64_t rows_of_trainer_0 = 32)
      : SharedImages(
            MakeQuantisedModel({.trainers = {{Box({0, 0}, {rows_of_trainer_0, kColumns})},
                                             {Box({rows_of_trainer_0, 0}, {48, kColumns})}},
                                .workers = 1,
                                .nonfinite_from = 4})) {}
};

// The trainers hold parts of the same blocks, and trade their maxima for each group.
class SharedImagesOfTradedScales : public SharedQuantisedImages {
 protected:
  SharedImagesOfTradedScales() : SharedQuantisedImages(20) {}
};

TEST_P(SharedImages, WhatEightGroupsWantAlikeIsStagedOnce) {
  Join();
  for (uint64_t version = 1; version <= 3; ++version) {
    Publish(version);
    ExpectStaged(version * kTensorBytes);
  }
}

TEST_P(SharedQuantisedImages, WhatIsQuantisedAlikeForEightGroupsIsQuantisedOnce) {
  Join();
  for (uint64_t version = 1; version <= 3; ++version) {
    Publish(version);
    ExpectStaged(version * (kQuantisedBytes + kScaleBytes));
  }
}

TEST_P(SharedQuantisedImages, NoGroupShowsNonFiniteElementsThatWereQuantisedForAnother) {
  Join();
  Publish(3);
  (void)job_.PublishAll(4, {.timeout = absl::Seconds(20), .fail_on_nonfinite = true});
  const auto outcomes = job_.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_EQ(outcomes->size(), 8u);
  for (const GroupOutcome& outcome : *outcomes) EXPECT_FALSE(outcome.committed) << outcome.group;
  for (uint32_t w = 0; w < 8; ++w) EXPECT_TRUE(job_.Shows(w, 3)) << w;
}

TEST_P(SharedImagesOfTradedScales, WhatDependsOnOtherTrainersIsQuantisedForEachGroup) {
  Join();
  Publish(1);
  ExpectStaged(8 * (kQuantisedBytes + kScaleBytes));
}

TEST_P(SharedImages, WhatHasChangedForEightGroupsIsStagedOnce) {
  Join(/*changes=*/true);
  for (uint64_t version = 1; version <= 3; ++version) {
    Publish(version);
    ExpectStaged(version * kTensorBytes);
  }
}

TEST_P(SharedImages, AGroupThatComesLateTakesWhatIsStaged) {
  Join();
  Publish(1);
  job_.worker(7).reset();
  ASSERT_EQ(job_.JoinWorker(7).message(), "");
  EXPECT_EQ(job_.worker(7)->AwaitShown(1, absl::Seconds(20)).message(), "");
  ExpectStaged(kTensorBytes);
  Publish(2);
  ExpectStaged(2 * kTensorBytes);
}

INSTANTIATE_TEST_SUITE_P(Threads, SharedImages, testing::Values(0, 2));
INSTANTIATE_TEST_SUITE_P(Threads, SharedQuantisedImages, testing::Values(0, 2));
INSTANTIATE_TEST_SUITE_P(Threads, SharedImagesOfTradedScales, testing::Values(0, 2));
INSTANTIATE_TEST_SUITE_P(Threads, Images, testing::Values(0, 2));
INSTANTIATE_TEST_SUITE_P(Threads, FetchedImages, testing::Values(0, 2));
INSTANTIATE_TEST_SUITE_P(Threads, RequiredFetchedImages, testing::Values(0, 2));

}  // namespace
}  // namespace waybill
