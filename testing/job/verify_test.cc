// SPDX-License-Identifier: Apache-2.0

// Workers verify what they show, asked by their own program or by the controller.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/steady_now.h"
#include "core/control/ask_controller.h"
#include "core/control/worker_client.h"
#include "core/fabric/local/local_fabric.h"
#include "core/protocol/message_codec.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

constexpr char kToken[] = "a secret of the job";

absl::StatusOr<std::vector<proto::Verified>> Ask(Job& job, const std::string& group = "") {
  return VerifyWorkers(job.controller().address(), kToken, group, absl::Seconds(20));
}

absl::Status StatusOf(const proto::Verified& worker) { return DecodeError(worker.error()); }

void PublishToAll(Job& job, uint64_t version, const PublishOptions& options = {}) {
  for (const absl::Status& status : job.PublishAll(version, options)) {
    EXPECT_EQ(status.message(), "");
  }
  const auto outcome = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
}

class VerifyTest : public testing::TestWithParam<Mode> {};

TEST_P(VerifyTest, TheControllerNamesTheWorkerWhoseByteWasChangedAndNoOther) {
  Job job({.groups = {"a", "b"}, .mode = GetParam()});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  {
    const absl::StatusOr<Snapshot> snapshot = job.worker(1)->TakeSnapshot("test");
    ASSERT_TRUE(snapshot.ok());
    *const_cast<std::byte*>(snapshot->region(0).data() + 5) ^= std::byte{1};
  }
  const absl::StatusOr<std::vector<proto::Verified>> reply = Ask(job);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->size(), 2u);
  for (const proto::Verified& worker : *reply) {
    EXPECT_EQ(worker.version(), 1u);
    EXPECT_EQ(worker.bytes(), uint64_t{Job::kRows * Job::kColumns * 2});
  }
  EXPECT_EQ(reply->at(0).group(), "a");
  EXPECT_EQ(StatusOf(reply->at(0)).message(), "");
  EXPECT_EQ(reply->at(1).group(), "b");
  EXPECT_EQ(StatusOf(reply->at(1)).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(StatusOf(reply->at(1)).message(),
              testing::HasSubstr("version 1: 1 of 2 pieces are not what was sent: tensor \"w\""));

  PublishToAll(job, 2);
  const absl::StatusOr<std::vector<proto::Verified>> repaired = Ask(job, "b");
  ASSERT_TRUE(repaired.ok()) << repaired.status();
  ASSERT_EQ(repaired->size(), 1u);
  EXPECT_EQ(StatusOf(repaired->at(0)).message(), "");
  EXPECT_EQ(repaired->at(0).version(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Modes, VerifyTest,
                         testing::Values(Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace),
                         [](const auto& mode) {
                           return std::string(mode.param == Mode::kShadow       ? "Shadow"
                                              : mode.param == Mode::kShadowCopy ? "ShadowCopy"
                                                                                : "InPlace");
                         });

TEST(Verify, AWorkerThatHasNothingToCompareSaysWhy) {
  Job job({.workers = 1});
  ASSERT_EQ(job.StartController().message(), "");
  EXPECT_EQ(Ask(job).status().message(), "no worker has joined");
  ASSERT_EQ(job.JoinAll().message(), "");
  EXPECT_EQ(Ask(job, "c").status(), absl::NotFoundError("no worker of group c has joined"));
  absl::StatusOr<std::vector<proto::Verified>> reply = Ask(job);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(StatusOf(reply->at(0)).message(), testing::HasSubstr("no version is shown yet"));
  PublishToAll(job, 1, {.digests = Digests::kOff});
  reply = Ask(job);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(StatusOf(reply->at(0)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(StatusOf(reply->at(0)).message(), testing::HasSubstr("published without digests"));
}

// One trainer and workers with the same tensors, whose verification takes a while.
class LargeModel final : public ClusterModel {
 public:
  static constexpr int64_t kTensors = 32, kElements = 1 << 19;

  Manifest Trainer(uint32_t) const override { return Worker(0); }
  Manifest Worker(uint32_t) const override {
    const Format bf16{Dtype::kBf16};
    Manifest m;
    m.AddRegion("all", kTensors * kElements * 2);
    for (int64_t t = 0; t < kTensors; ++t) {
      m.AddShard(m.AddTensor("w" + std::to_string(t), {kElements}, Dtype::kBf16), bf16,
                 Box({0}, {kElements}), {0, static_cast<uint64_t>(t * kElements * 2), {1}});
    }
    return m;
  }
  void Fill(uint64_t version, const Manifest& trainer, std::byte* memory) const override {
    std::memset(memory, static_cast<int>(version), trainer.region_bytes(0));
  }
  void Expect(uint64_t version, const Manifest&,
              std::vector<std::vector<std::byte>>& regions) const override {
    std::memset(regions[0].data(), static_cast<int>(version), regions[0].size());
  }
};

TEST_P(VerifyTest, NoCommitComesBetweenWhatIsCompared) {
  Job job(
      {.trainers = 1, .workers = 1, .model = std::make_shared<LargeModel>(), .mode = GetParam()});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  std::atomic<bool> over = false;
  uint64_t verified = 0;
  std::thread reader([&] {
    while (!over) {
      const absl::StatusOr<uint64_t> version = job.worker(0)->Verify();
      EXPECT_FALSE(absl::IsDataLoss(version.status())) << version.status();
      verified += version.ok() ? 1 : 0;
    }
  });
  for (uint64_t version = 2; version <= 20; ++version) PublishToAll(job, version);
  over = true;
  reader.join();
  EXPECT_GT(verified, 0u);
  EXPECT_EQ(*job.worker(0)->Verify(), 20u);
}

TEST_P(VerifyTest, ReadersThatFollowEachOtherWithoutAGapKeepNoUpdateOut) {
  if (GetParam() == Mode::kShadow) GTEST_SKIP() << "updates are written beside what is read";
  Job job({.trainers = 1, .workers = 1, .mode = GetParam()});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  std::atomic<bool> over = false;
  std::thread readers([&] {
    absl::StatusOr<Snapshot> earlier = absl::UnavailableError("");
    while (!over) {
      absl::StatusOr<Snapshot> later = job.worker(0)->TakeSnapshot("test");
      EXPECT_TRUE(later.ok() || absl::IsUnavailable(later.status())) << later.status();
      earlier = std::move(later);
    }
  });
  for (uint64_t version = 2; version <= 20; ++version) PublishToAll(job, version);
  over = true;
  readers.join();
}

// A worker whose program pauses and ends while the controller asks what it shows.
class AskedWorker : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(job_.StartController().message(), "");
    Start();
    PublishToAll(job_, 1);
    asker_ = std::thread([this] {
      while (!over_) {
        const absl::StatusOr<std::vector<proto::Verified>> reply = Ask(job_);
        if (!reply.ok()) continue;  // The worker is not there.
        for (const proto::Verified& worker : *reply) {
          EXPECT_NE(StatusOf(worker).code(), absl::StatusCode::kDataLoss) << StatusOf(worker);
          EXPECT_NE(StatusOf(worker).code(), absl::StatusCode::kDeadlineExceeded);
          ++answers_;
        }
      }
    });
  }
  void TearDown() override {
    over_ = true;
    if (asker_.joinable()) asker_.join();
  }
  // Joins the worker; the trainer too if it has not joined.
  void Start() {
    std::promise<absl::Status> joined;
    const Manifest manifest = LargeModel().Worker(0);
    memory_.assign(manifest.region_bytes(0), std::byte{0});
    client_ = *WorkerClient::Create(job_.Identity(0, 1), {.mode = Mode::kShadowCopy}, manifest,
                                    {{MemoryKind::kHost, memory_.data(), memory_.size()}}, {},
                                    *MakeLocalFabric(), [&joined](const Notice& notice) {
                                      if (notice.kind != Notice::Kind::kJoined) return;
                                      joined.set_value(notice.status);
                                    });
    client_->Join(1, SteadyNow() + absl::Seconds(20));
    if (job_.trainer(0) == nullptr) {
      ASSERT_EQ(job_.JoinTrainer(0).message(), "");
    }
    ASSERT_EQ(joined.get_future().get().message(), "");
  }

  Job job_{{.trainers = 1, .workers = 1, .model = std::make_shared<LargeModel>()}};
  std::vector<std::byte> memory_;
  std::unique_ptr<WorkerClient> client_;
  std::atomic<bool> over_ = false;
  std::atomic<int> answers_ = 0;
  std::thread asker_;
};

TEST_F(AskedWorker, PausesAtOnce) {
  while (answers_ < 50) {
    ASSERT_EQ(client_->Pause().message(), "");
    client_->Resume(/*kept=*/true);
  }
}

TEST_F(AskedWorker, ReadsNothingAfterItHasLeft) {
  for (uint64_t version = 2; version <= 30; ++version) {
    client_.reset();
    std::vector<std::byte>().swap(memory_);
    Start();
    PublishToAll(job_, version);
  }
}

}  // namespace
}  // namespace waybill
