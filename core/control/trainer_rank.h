// SPDX-License-Identifier: Apache-2.0

// A trainer without threads and sockets: its session, and one engine per group, which execute the
// session's commands.
//
// The program around it (trainer_client.h, or a simulation) provides a fabric, a stream, a thread
// and the time.
#ifndef WAYBILL_CORE_CONTROL_TRAINER_RANK_H_
#define WAYBILL_CORE_CONTROL_TRAINER_RANK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/control/changes_choice.h"
#include "core/control/group_sender.h"
#include "core/control/image_publisher.h"
#include "core/control/rank_actions.h"
#include "core/control/rank_nics.h"
#include "core/control/rank_report.h"
#include "core/engine/replica_sample.h"
#include "core/engine/sender_engine.h"
#include "core/engine/timeline.h"
#include "core/fabric/fabric.h"
#include "core/protocol/trainer_session.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Not thread-safe.
class TrainerRank final : private TrainerHost {
 public:
  // `regions`: the memory of each region of the manifest. The memory, the fabric and `actions` must
  // outlive the rank.
  static absl::StatusOr<std::unique_ptr<TrainerRank>> Create(SessionOptions options,
                                                             const SenderEngineOptions& engine,
                                                             Manifest manifest,
                                                             std::vector<MemorySpan> regions,
                                                             Fabric* fabric, RankActions* actions);

  void Join(uint64_t token, absl::Time deadline, absl::Time now);
  void Publish(uint64_t token, const PublishCommand& command, absl::Time now);
  void Proceed(uint64_t token, const absl::Status& done, absl::Time now);
  void Release(uint64_t token, absl::Time now);
  void Decide(uint64_t version, const absl::Status& word, absl::Time now) {
    session_.Decide(version, word, now);
  }
  void Cancel(uint64_t token, absl::Time now);
  void Leave(uint64_t token, absl::Time now);

  void OnStreamOpen(absl::Time now);
  void OnStreamEnd(const absl::Status& status, absl::Time now);
  void OnMessage(const proto::ControllerMessage& message, absl::Time now);

  // Makes progress.
  void Step(absl::Time now);
  // Returns the time at which Step() must be called again, even without events of the fabric.
  absl::Time next_deadline() const;

  const TrainerSession& session() const { return session_; }
  // Returns the report, with the current update's counts and stages up to now.
  TrainerReport report() const;
  // Returns the number of changes of the report so far, other than of the current update's counts
  // and stages.
  uint64_t report_changes() const { return report_changes_; }
  // Returns the current update's counts so far, summed over all groups.
  TransferCounts counts() const;

 private:
  TrainerRank(SessionOptions options, Manifest manifest, std::vector<MemorySpan> regions,
              Fabric* fabric, RankActions* actions);

  // TrainerHost.
  void OpenStream() override { actions_.OpenStream(); }
  void CloseStream() override { actions_.CloseStream(); }
  void Send(proto::RankMessage message) override { actions_.Send(std::move(message)); }
  void Tell(Notice notice) override {
    ++report_changes_;
    if (notice.kind == Notice::Kind::kOutcome) NoteOutcome(notice);
    images_ ? images_->OnNotice(std::move(notice)) : actions_.Tell(std::move(notice));
  }
  proto::RankReport MakeReport() const override { return EncodeReport(report(), fabric_); }
  absl::StatusOr<proto::Offers> SetPlan(TermPlan plan) override;
  absl::Status Connect(const std::string& group, const proto::Connect& connect) override;
  absl::Status SetBufferAddress(const std::string& group, uint32_t worker, uint32_t buffer_index,
                                const proto::Buffer& buffer) override;
  void Sample(uint64_t version, proto::Publish& publish) override;
  absl::Status Start(const std::string& group, const UpdateId& update,
                     const PublishCommand& publish, const proto::Start& start) override;
  void Abort(const std::string& group, const UpdateId& update) override {
    groups_.at(group).sender->engine().Abort(update.sequence);
  }
  void StopNow(const std::string& group) override { groups_.at(group).sender->engine().StopNow(); }
  void ForgetGroup(const std::string& group) override;

  // An update whose time counts for a choice.
  struct Timed {
    uint64_t version = 0;
    Sent sent = Sent::kEverything;
    absl::Time begun;
  };

  // The state that this trainer keeps of one group.
  struct Group {
    std::unique_ptr<GroupSender> sender;
    uint64_t planned_bytes = 0;
    bool connected = false;
    uint64_t version = 0;  // The version of the last update that was begun.
    std::vector<LaneReport> lanes;
    ChangesChoice choice;
    std::optional<Timed> timed;  // The update that goes on.
  };

  void PollFabric();
  // Returns why the publish's selection cannot be taken over.
  absl::Status CheckSelection(const Selection& selection) const;
  // Returns the versions that an update may be sent from: without the one before if everything is
  // to be sent.
  VersionsInMemory Choose(Group& group, const PublishCommand& publish, const proto::Start& start);
  void NoteOutcome(const Notice& outcome);
  // Registers memory that updates are sent from, by region of the manifest.
  void AddSources(absl::Span<const MemorySpan> regions);
  // Sums over all groups the parts of the report that do not change during an update.
  void UpdateReport();
  // Hands the engines' events to the session until none are left.
  void HandleEvents(absl::Time now);
  void Handle(const std::string& name, const SenderEvent& event, absl::Time now);
  void NoteSent(const std::string& name, const Group& group, const SenderEvent& event,
                absl::Time now);
  absl::Status DescribeNonFinite(const Group& group) const;

  const Manifest manifest_;
  const std::vector<MemorySpan> regions_;  // The tensors, or their first image.
  Fabric& fabric_;
  RankActions& actions_;
  RankNics nics_;
  TrainerSession session_;
  std::unique_ptr<ImagePublisher> images_;  // Null: versions are sent from the tensors.
  std::unique_ptr<StagingArea> staging_;    // After the image, whose memory it registers.
  std::unique_ptr<ReplicaSample> sample_;
  std::map<std::string, Group> groups_;
  std::vector<FabricEvent> fabric_events_;
  std::deque<std::pair<std::string, SenderEvent>> events_;  // Each with its group.
  absl::Time now_;
  TrainerReport report_;
  uint64_t report_changes_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_TRAINER_RANK_H_
