// SPDX-License-Identifier: Apache-2.0

#include "core/control/worker_client.h"

#include <atomic>
#include <future>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

class Client final : public WorkerClient {
 public:
  Client(const RankIdentity& identity, std::unique_ptr<Fabric> fabric, NoticeSink sink)
      : client_(identity, std::move(fabric), [this, sink = std::move(sink)](Notice notice) {
          // No rank may write to this worker's memory after it has left.
          if (notice.kind == Notice::Kind::kLeft) {
            verification_ = {};  // The memory may be unmapped after kLeft.
            client_.rank().CloseLanes();
            if (!std::exchange(has_left_, true)) left_.set_value();
          }
          if (destroying_) return;
          if (notice.kind == Notice::Kind::kVerify) return BeginVerifying(notice.token);
          // The report must contain the event before the notice is delivered.
          Publish(client_.rank());
          sink(std::move(notice));
        }) {}

  ~Client() override {
    if (!client_.running()) return;
    client_.DoAndWait([this](WorkerRank& rank, absl::Time now) {
      destroying_ = true;
      if (!has_left_) rank.Leave(0, now);
    });
    left_.get_future().wait();
    client_.Stop();
  }

  absl::Status Begin(const RankIdentity& identity, const ReceiverEngineOptions& engine,
                     Manifest manifest, const std::vector<MemorySpan>& user_regions,
                     std::set<Notice::Kind> asked) {
    WAYBILL_ASSIGN_OR_RETURN(
        std::unique_ptr<WorkerRank> rank,
        WorkerRank::Create(MakeSessionOptions(identity, Role::kWorker), engine,
                           {.stage_threads = engine.verify_threads}, std::move(manifest),
                           user_regions, std::move(asked), client_.fabric(), client_.actions()));
    report_ = rank->report();
    client_.Start(std::move(rank), [this](const WorkerRank& stepped) { Publish(stepped); });
    return absl::OkStatus();
  }

  void Join(uint64_t token, absl::Time deadline) override {
    client_.Do([=](WorkerRank& rank, absl::Time now) { rank.Join(token, deadline, now); });
  }
  void Fetch(uint64_t token, uint64_t at_least, absl::Time deadline) override {
    client_.Do(
        [=](WorkerRank& rank, absl::Time now) { rank.Fetch(token, at_least, deadline, now); });
  }
  void Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer) override {
    client_.Do([=](WorkerRank& rank, absl::Time now) { rank.Answer(kind, update, answer, now); });
  }
  void Leave(uint64_t token) override {
    client_.Do([=](WorkerRank& rank, absl::Time now) { rank.Leave(token, now); });
  }

  // Stops a verification for the controller, whose snapshot would keep the engine from pausing. The
  // progress thread does not wait for its end.
  absl::Status Pause() override {
    std::jthread stopped;
    client_.DoAndWait([&](WorkerRank&, absl::Time) {
      ++pausing_;
      stopped = std::move(verification_);
    });
    stopped = {};
    absl::Status status;
    client_.DoAndWait([&](WorkerRank& rank, absl::Time) {
      --pausing_;
      status = rank.Pause();
    });
    return status;
  }
  void Resume(bool kept) override {
    client_.DoAndWait([&](WorkerRank& rank, absl::Time) { rank.Resume(kept); });
  }

  absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) override {
    return client_.rank().TakeSnapshot(holder);
  }
  absl::StatusOr<uint64_t> Verify() override { return client_.rank().Verify(); }
  uint64_t shown_version() const override { return client_.rank().shown_version(); }
  bool dirty() const override { return client_.rank().dirty(); }
  WorkerReport report() const override {
    const std::lock_guard lock(mutex_);
    return report_;
  }

 private:
  // Verifies for the controller on a thread of its own, one request at a time.
  void BeginVerifying(uint64_t request) {
    const auto answer = [this, request](const Comparison& comparison, absl::Duration took) {
      proto::Verified verified;
      verified.set_request(request);
      verified.set_version(comparison.version);
      verified.set_bytes(comparison.bytes);
      verified.set_seconds(absl::ToDoubleSeconds(took));
      if (!comparison.status.ok()) *verified.mutable_error() = EncodeError(comparison.status);
      client_.Do([=](WorkerRank& rank, absl::Time) { rank.OnVerified(verified); });
    };
    if (pausing_ > 0 || verifying_.exchange(true)) {
      return answer({.status = absl::UnavailableError(
                         pausing_ > 0 ? "the worker is being paused"
                                      : "it still verifies for an earlier request; try again")},
                    absl::ZeroDuration());
    }
    verification_ = std::jthread([this, answer](const std::stop_token& stop) {
      const absl::Time began = SteadyNow();
      const Comparison comparison = client_.rank().CompareShown(stop);
      verifying_ = false;  // Before the answer, which may bring the next request.
      answer(comparison, SteadyNow() - began);
    });
  }

  // Copying the report for every chunk would cost more than the chunk.
  bool HasProgressed(const WorkerRank& rank) const {
    constexpr uint64_t kSteps = 128;
    const uint64_t further = rank.arrived_bytes() - copied_bytes_;
    return further > rank.planned_bytes() / kSteps;
  }
  // Copies changed parts of the report to the copy that other threads read.
  void Publish(const WorkerRank& rank) {
    const bool changed = rank.report_changes() != copied_changes_;
    if (!changed && !HasProgressed(rank) && rank.session().in_doubt() == copied_doubt_ &&
        rank.session().catching_up() == copied_catching_up_) {
      return;
    }
    copied_changes_ = rank.report_changes();
    copied_bytes_ = rank.arrived_bytes();
    copied_doubt_ = rank.session().in_doubt();
    copied_catching_up_ = rank.session().catching_up();
    const std::lock_guard lock(mutex_);
    report_ = rank.report();
  }

  std::atomic<bool> verifying_ = false;
  mutable std::mutex mutex_;
  WorkerReport report_;                     // Guarded by mutex_.
  uint64_t copied_changes_ = ~uint64_t{0};  // Used on the progress thread, like all members below.
  bool destroying_ = false;
  bool has_left_ = false;
  std::promise<void> left_;
  int pausing_ = 0;            // The number of Pause() calls that wait for a verification to stop.
  std::jthread verification_;  // The latest verification, which ends before kLeft is delivered.
  uint64_t copied_bytes_ = 0;
  bool copied_doubt_ = false;
  bool copied_catching_up_ = false;
  // Last, so that its thread ends before the other members are destroyed.
  RankClient<WorkerRank> client_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerClient>> WorkerClient::Create(
    const RankIdentity& identity, const ReceiverEngineOptions& engine, Manifest manifest,
    const std::vector<MemorySpan>& user_regions, std::set<Notice::Kind> asked,
    std::unique_ptr<Fabric> fabric, NoticeSink sink) {
  auto client = std::make_unique<Client>(identity, std::move(fabric), std::move(sink));
  WAYBILL_RETURN_IF_ERROR(
      client->Begin(identity, engine, std::move(manifest), user_regions, std::move(asked)));
  return client;
}

}  // namespace waybill
