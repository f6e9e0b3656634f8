// SPDX-License-Identifier: Apache-2.0

#include "core/control/trainer_client.h"

#include <mutex>
#include <utility>

#include "core/base/status.h"

namespace waybill {
namespace {

class Client final : public TrainerClient {
 public:
  Client(const RankIdentity& identity, std::unique_ptr<Fabric> fabric, NoticeSink sink)
      : client_(identity, std::move(fabric), [this, sink = std::move(sink)](Notice notice) {
          if (destroying_) return;
          // The report must contain the event before the notice is delivered. Each group has an
          // outcome, and it is not part of the report.
          if (notice.kind != Notice::Kind::kOutcome) Publish(client_.rank());
          sink(std::move(notice));
        }) {}

  ~Client() override {
    if (!client_.running()) return;
    client_.DoAndWait([this](TrainerRank& rank, absl::Time now) {
      destroying_ = true;
      rank.Leave(0, now);
    });
    client_.Stop();
  }

  absl::Status Begin(const RankIdentity& identity, const SenderEngineOptions& engine,
                     const Manifest& manifest, std::vector<MemorySpan> regions) {
    WAYBILL_ASSIGN_OR_RETURN(
        std::unique_ptr<TrainerRank> rank,
        TrainerRank::Create(MakeSessionOptions(identity, Role::kTrainer), engine, manifest,
                            std::move(regions), client_.fabric(), client_.actions()));
    report_ = rank->report();
    client_.Start(std::move(rank), [this](const TrainerRank& stepped) { Publish(stepped); });
    return absl::OkStatus();
  }

  void Join(uint64_t token, absl::Time deadline) override {
    client_.Do([=](TrainerRank& rank, absl::Time now) { rank.Join(token, deadline, now); });
  }
  void Publish(uint64_t token, const PublishCommand& command) override {
    client_.Do([=](TrainerRank& rank, absl::Time now) { rank.Publish(token, command, now); });
  }
  void Proceed(uint64_t token, const absl::Status& done) override {
    client_.Do([=](TrainerRank& rank, absl::Time now) { rank.Proceed(token, done, now); });
  }
  void Release(uint64_t token) override {
    client_.Do([=](TrainerRank& rank, absl::Time now) { rank.Release(token, now); });
  }
  void Decide(uint64_t version, const absl::Status& word) override {
    client_.Do([=](TrainerRank& rank, absl::Time now) { rank.Decide(version, word, now); });
  }
  void Cancel(uint64_t token) override {
    client_.Do([=](TrainerRank& rank, absl::Time now) { rank.Cancel(token, now); });
  }
  void Leave(uint64_t token) override {
    client_.Do([=](TrainerRank& rank, absl::Time now) { rank.Leave(token, now); });
  }

  TrainerReport report() const override {
    const std::lock_guard lock(mutex_);
    return report_;
  }

 private:
  // Copies changed parts of the report to the copy that other threads read.
  void Publish(const TrainerRank& rank) {
    const bool changed = rank.report_changes() != copied_changes_;
    const TransferCounts counts = rank.counts();
    if (!changed && counts == copied_counts_) return;
    copied_changes_ = rank.report_changes();
    copied_counts_ = counts;
    const std::lock_guard lock(mutex_);
    report_ = rank.report();
  }

  mutable std::mutex mutex_;
  TrainerReport report_;     // Guarded by mutex_.
  bool destroying_ = false;  // Used on the progress thread, like all members below.
  uint64_t copied_changes_ = ~uint64_t{0};
  TransferCounts copied_counts_;
  // Last, so that its thread ends before the other members are destroyed.
  RankClient<TrainerRank> client_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerClient>> TrainerClient::Create(
    const RankIdentity& identity, const SenderEngineOptions& engine, const Manifest& manifest,
    std::vector<MemorySpan> regions, std::unique_ptr<Fabric> fabric, NoticeSink sink) {
  auto client = std::make_unique<Client>(identity, std::move(fabric), std::move(sink));
  WAYBILL_RETURN_IF_ERROR(client->Begin(identity, engine, manifest, std::move(regions)));
  return client;
}

}  // namespace waybill
