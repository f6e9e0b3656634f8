// SPDX-License-Identifier: Apache-2.0

// Jobs in which workers relay what they receive to others of their group.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/control/status_json.h"
#include "core/fabric/choice/make_fabric.h"
#include "testing/faulty_fabric/faulty_fabric.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

constexpr uint64_t kTensorBytes = Job::kRows * Job::kColumns * 2;

struct Case {
  const char* name;
  Mode mode;
  FabricKind fabric;
};

class RelaysTest : public testing::TestWithParam<Case> {
 protected:
  static JobOptions Options() {
    JobOptions options{.trainers = 2, .workers = 3, .mode = GetParam().mode, .relays = true};
    options.make_fabric = [fabric = GetParam().fabric](const std::string&) {
      return *MakeFabric({.forced = fabric, .host = "127.0.0.1"});
    };
    return options;
  }

  void Publish(uint64_t version, Digests digests = Digests::kOn) {
    for (const absl::Status& status :
         job_.PublishAll(version, {.timeout = absl::Seconds(20), .digests = digests})) {
      ASSERT_EQ(status.message(), "");
    }
    const auto outcomes = job_.trainer(0)->AwaitOutcome(absl::Seconds(20));
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    for (const GroupOutcome& outcome : *outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    }
    for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(job_.Shows(w, version)) << w;
  }

  Job job_{Options()};
};

TEST_P(RelaysTest, EveryWorkerShowsWhatTrainersSendOnce) {
  ASSERT_EQ(job_.StartController().message(), "");
  ASSERT_EQ(job_.JoinAll().message(), "");
  for (uint64_t version = 1; version <= 6; ++version) Publish(version);
  uint64_t planned_bytes = 0, relays = 0;
  const proto::StatusReply status = job_.controller().status();
  for (const proto::RankStatus& rank : status.ranks()) {
    for (const proto::LaneReport& lane : rank.lanes()) relays += lane.relay() ? 1 : 0;
    if (!rank.group().empty()) continue;
    planned_bytes += rank.planned_bytes();
  }
  for (uint32_t w = 0; w < 3; ++w) {
    EXPECT_EQ(job_.worker(w)->report().counts.verified_bytes, 6 * kTensorBytes);
  }
  EXPECT_EQ(planned_bytes, kTensorBytes);
  // Two workers relay to two others each, by lanes that both ends report.
  EXPECT_EQ(relays % (2 * 4), 0u);
  EXPECT_GT(relays, 0u);
}

TEST_P(RelaysTest, WithoutDigestsTheBytesAreTheSame) {
  ASSERT_EQ(job_.StartController().message(), "");
  ASSERT_EQ(job_.JoinAll().message(), "");
  for (uint64_t version = 1; version <= 6; ++version) {
    Publish(version, version % 3 == 0 ? Digests::kOn : Digests::kOff);
  }
}

// Worker 0 cannot send its nth message to worker 1. Over TCP, the first two grant memory. Where
// memory is mapped, only what ends an update is a message.
TEST_P(RelaysTest, WhatARelayThatIsLostDoesNotBringComesFromTheTrainers) {
  const bool stores = GetParam().fabric == FabricKind::kLocal;
  const FabricCall call = stores ? FabricCall::kSignal : FabricCall::kPost;
  for (const uint64_t nth :
       stores ? std::vector<uint64_t>{1, 2, 3} : std::vector<uint64_t>{3, 4, 5}) {
    SCOPED_TRACE(nth);
    JobOptions options = Options();
    options.make_fabric = [=, make = options.make_fabric](const std::string& rank) {
      auto fabric = std::make_unique<FaultyFabric>(make(rank));
      if (rank == "worker 0") {
        fabric->FailCall(call, "worker 1", nth, absl::UnavailableError("torn"));
      }
      return fabric;
    };
    Job job(options);
    ASSERT_EQ(job.StartController().message(), "");
    ASSERT_EQ(job.JoinAll().message(), "");
    for (uint64_t version = 1; version <= 4; ++version) {
      for (const absl::Status& status :
           job.PublishAll(version, {.timeout = absl::Seconds(20), .hold = true})) {
        ASSERT_EQ(status.message(), "");
      }
      ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
      for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(job.Shows(w, version)) << w;
      for (uint32_t t = 0; t < 2; ++t) EXPECT_EQ(job.trainer(t)->Release().message(), "");
    }
    EXPECT_EQ(LanesLost(job.controller().status().groups(0)), 1u);
  }
}

TEST_P(RelaysTest, AWorkerThatComesBackTakesItsPartAgain) {
  ASSERT_EQ(job_.StartController().message(), "");
  ASSERT_EQ(job_.JoinAll().message(), "");
  Publish(1);
  job_.worker(1).reset();
  ASSERT_EQ(job_.JoinWorker(1).message(), "");
  Publish(2);
  Publish(3);
}

TEST_P(RelaysTest, AVersionThatIsRefusedByOneWorkerIsShownByNone) {
  job_.handler(2) = [](const Notice& notice, const WorkerOptions::Answer& answer) {
    answer(notice.kind == Notice::Kind::kArrived && notice.update.version == 2
               ? absl::FailedPreconditionError("the smoke test failed")
               : absl::OkStatus());
  };
  ASSERT_EQ(job_.StartController().message(), "");
  ASSERT_EQ(job_.JoinAll().message(), "");
  Publish(1);
  job_.PublishAll(2);
  const auto outcomes = job_.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_FALSE((*outcomes)[0].committed);
  EXPECT_EQ((*outcomes)[0].status.message(), "worker 2: vetoed: the smoke test failed");
  if (GetParam().mode != Mode::kInPlace) {
    for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(job_.Shows(w, 1)) << w;
  }
  Publish(3);
}

// The others show the version already: they relay it from there.
TEST_P(RelaysTest, AWorkerThatComesBackGetsWhatTheTrainersHoldAndTheOthersShow) {
  ASSERT_EQ(job_.StartController().message(), "");
  ASSERT_EQ(job_.JoinAll().message(), "");
  Publish(1);
  for (const absl::Status& status : job_.PublishAll(2, {.hold = true})) {
    ASSERT_EQ(status.message(), "");
  }
  ASSERT_TRUE(job_.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  job_.worker(1).reset();
  ASSERT_EQ(job_.JoinWorker(1).message(), "");
  EXPECT_EQ(job_.worker(1)->AwaitShown(2, absl::Seconds(20)).message(), "");
  for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(job_.Shows(w, 2)) << w;
  for (uint32_t t = 0; t < 2; ++t) EXPECT_EQ(job_.trainer(t)->Release().message(), "");
  Publish(3);
}

INSTANTIATE_TEST_SUITE_P(Jobs, RelaysTest,
                         testing::Values(Case{"ShadowLocal", Mode::kShadow, FabricKind::kLocal},
                                         Case{"ShadowCopyLocal", Mode::kShadowCopy,
                                              FabricKind::kLocal},
                                         Case{"InPlaceTcp", Mode::kInPlace, FabricKind::kTcp},
                                         Case{"ShadowTcp", Mode::kShadow, FabricKind::kTcp}),
                         [](const auto& job) { return job.param.name; });

}  // namespace
}  // namespace waybill
