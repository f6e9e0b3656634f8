// SPDX-License-Identifier: Apache-2.0

// A job whose workers relay, in one thread: the production coordinator and ranks, with their
// messages in the test's hands.
#ifndef WAYBILL_TESTING_RELAYING_RELAYING_JOB_H_
#define WAYBILL_TESTING_RELAYING_RELAYING_JOB_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/control/rank_actions.h"
#include "core/control/trainer_rank.h"
#include "core/control/worker_rank.h"
#include "core/fabric/fabric.h"
#include "core/fabric/loopback/loopback.h"
#include "core/protocol/coordinator.h"
#include "testing/cluster/cluster.h"
#include "testing/faulty_fabric/faulty_fabric.h"

namespace waybill {

struct RelayingOptions {
  Mode mode = Mode::kShadow;
  std::shared_ptr<ClusterMemory> worker_memory;          // The workers' own, or Waybill's if null.
  std::function<std::unique_ptr<Fabric>()> make_fabric;  // None: one loopback network.
  std::set<Notice::Kind> asked;                          // What workers' users answer.
  bool digests_off = false;
};

// Two trainers hold the halves of a tensor, of which each of three workers wants all.
class RelayingJob final : private CoordinatorActions {
 public:
  static constexpr uint32_t kTrainers = 2;
  static constexpr uint32_t kWorkers = 3;

  // A rank, with its stream.
  struct Member final : RankActions {
    void OpenStream() override { opening = true; }
    void CloseStream() override { connection = 0; }
    void Send(proto::RankMessage message) override {
      said.push_back(message);
      outbox.push_back(std::move(message));
    }
    void Tell(Notice notice) override { notices.push_back(std::move(notice)); }
    // Hears a message out of turn, whoever it is from.
    void Hear(const proto::ControllerMessage& message, absl::Time now) {
      trainer ? trainer->OnMessage(message, now) : worker->OnMessage(message, now);
    }
    // Returns how often it said so, or heard so.
    int Said(proto::RankMessage::KindCase kind) const;
    int Heard(proto::ControllerMessage::KindCase kind) const;

    RankId id;
    std::unique_ptr<FaultyFabric> fabric;
    MemorySpan memory;
    std::vector<std::byte> own_memory;
    std::unique_ptr<TrainerRank> trainer;
    std::unique_ptr<WorkerRank> worker;
    bool opening = false;
    ConnectionId connection = 0;
    std::deque<proto::RankMessage> outbox;
    std::deque<proto::ControllerMessage> inbox;
    std::vector<proto::RankMessage> said;
    std::vector<proto::ControllerMessage> heard;
    std::vector<Notice> notices;
  };

  explicit RelayingJob(const RelayingOptions& options = {});
  ~RelayingJob() override;

  // Returns true once every rank is part of a term and knows it.
  bool Establish();
  // Begins to publish from all trainers.
  void Publish(uint64_t version, absl::Duration timeout = absl::Seconds(10));
  // Publishes, and returns what became of it.
  absl::Status PublishAndAwait(uint64_t version);
  // Returns what a trainer heard of a version; kUnknown if nothing.
  absl::Status OutcomeOf(uint64_t version);
  // Returns true if every worker shows exactly the bytes of a version.
  bool AllShow(uint64_t version);

  // Delivers messages, lets each rank do what it can, and some time pass.
  void Step();
  // Returns false if it does not come true.
  bool StepUntil(const std::function<bool()>& done);

  Member& trainer(uint32_t t) { return members_[t]; }
  Member& worker(uint32_t w) { return members_[kTrainers + w]; }
  Coordinator& coordinator() { return *coordinator_; }
  absl::Time now() const { return now_; }
  // While it returns true of a message, the message and those behind it wait in the inbox.
  std::function<bool(const Member&, const proto::ControllerMessage&)> hold;
  // Sees each message before its receiver does, and may change it.
  std::function<void(const Member&, proto::ControllerMessage&)> change;

 private:
  // CoordinatorActions.
  void Send(ConnectionId connection, proto::ControllerMessage message) override;
  void Close(ConnectionId) override {}
  void Compute(Work work) override { work_.push_back(std::move(work)); }
  void Record(uint64_t ticket, const Decision&) override { records_.push_back(ticket); }

  void MakeRank(Member& member);
  void Deliver(Member& member);

  const RelayingOptions options_;
  LoopbackNetwork network_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Member> members_;
  ConnectionId last_connection_ = 0;
  std::vector<Work> work_;
  std::vector<uint64_t> records_;
  uint64_t last_token_ = 0;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_RELAYING_RELAYING_JOB_H_
