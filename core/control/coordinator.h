// The controller's mind: who is here, which plan holds, which update is going on.
//
// Pure: messages in, messages out; time is told. Everything that needs a socket is in controller.h.
#ifndef WAYBILL_CORE_CONTROL_COORDINATOR_H_
#define WAYBILL_CORE_CONTROL_COORDINATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/control/control.pb.h"
#include "core/control/decision_log.h"
#include "core/control/membership.h"
#include "core/control/update_round.h"
#include "core/plan/plan.h"

namespace waybill {

struct CoordinatorOptions {
  std::string job = "waybill";
  std::string token;      // That every rank has to show; empty where none is wanted.
  uint32_t trainers = 0;  // How many are demanded; 0: as many as they declare.
  uint32_t workers = 0;
  // From a rank's coming until all are there and connected; else it is dismissed.
  absl::Duration join_timeout = absl::Minutes(2);
  // Of a publish that names none.
  absl::Duration publish_timeout = absl::Seconds(60);
  // How long a trainer of an aborted update may take to say that it is quiescent, before the
  // workers fence it off.
  absl::Duration quiescence_timeout = absl::Seconds(1);
};

class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void Send(ConnectionId connection, proto::ControllerMessage message) = 0;
  // After what was sent has left.
  virtual void Close(ConnectionId connection) = 0;
};

// Not thread-safe.
class Coordinator final : private RoundActions {
 public:
  // `log` may be null: then nothing outlives this process. Both outlive the coordinator.
  Coordinator(CoordinatorOptions options, DecisionLog* log, Outbox* outbox);
  ~Coordinator() override;

  void OnMessage(ConnectionId connection, const proto::RankMessage& message, absl::Time now);
  // The stream has ended, by whoever.
  void OnGone(ConnectionId connection, absl::Time now);
  void OnTime(absl::Time now);
  // When OnTime() has something to do next.
  absl::Time next_deadline() const;

  bool TokenIsRight(absl::string_view token) const { return members_.TokenIsRight(token); }
  proto::StatusReply Status() const;

 private:
  enum class Phase { kGathering, kOffering, kConnecting, kReady };
  struct PendingPublish {
    uint32_t trainer;
    uint64_t version;
    bool digests_off;
    absl::Time deadline;
  };

  // RoundActions.
  void ToWorker(uint32_t worker, proto::ControllerMessage message) override;
  void ToTrainer(uint32_t trainer, proto::ControllerMessage message) override;
  absl::Status Record(const std::string& group) override;

  void ToRank(RankId id, proto::ControllerMessage message);
  void Dismiss(ConnectionId connection, const absl::Status& status);
  bool AnyNewcomer() const;
  void DismissNewcomers();
  void DismissAll(const absl::Status& status);

  void OnJoin(ConnectionId connection, const proto::Join& join, absl::Time now);
  void OnOffers(Member& member, const proto::Offers& offers);
  void OnConnected(Member& member, const proto::Connected& connected, absl::Time now);
  void OnNics(Member& member, const proto::Nics& nics, absl::Time now);
  void ReplaceLanes(absl::Time now);
  void OnPublish(const Member& member, const proto::Publish& publish, absl::Time now);
  void OnFailed(const Member& member, const proto::Failed& failed);
  void OnRoundMessage(Member& member, const proto::RankMessage& message, absl::Time now);

  void BeginEpochIfComplete(absl::Time now);
  absl::Status BeginEpoch();
  void ResolveDoubts();
  void SendPlan(const Member& member);
  void SendConnect();
  void RefusePublish(uint32_t trainer, uint64_t version, const absl::Status& status);
  absl::Status CheckPublish(const proto::Publish& publish) const;
  void RefuseLatePublishes(absl::Time now);
  void BeginRoundIfQuiet(absl::Time now);
  void FinishRoundIfOver(absl::Time now);
  std::string DescribeWaiting() const;

  const CoordinatorOptions options_;
  DecisionLog* const log_;
  Outbox* const outbox_;
  Membership members_;
  struct Doubt {
    uint64_t epoch;
    uint32_t sequence;
    uint64_t version;
  };
  std::map<uint32_t, Doubt> doubts_;  // By worker: voted, and never heard.

  bool nics_changed_ = false;  // Since the plan was made.
  bool lane_lost_ = false;     // Between ranks that live, in this epoch.
  uint64_t lanes_lost_ = 0;    // Epochs that began because of that.
  Phase phase_ = Phase::kGathering;
  absl::Time join_deadline_ = absl::InfiniteFuture();
  uint64_t epoch_ = 0;
  uint32_t sequence_ = 0;
  Plan plan_;

  std::unique_ptr<UpdateRound> round_;
  std::vector<PendingPublish> pending_;  // Until the last round's trainers are quiescent.
  absl::Time quiescence_deadline_ = absl::InfiniteFuture();
  std::set<uint32_t> unquiet_;  // Trainers that are here and were not quiescent when a round ended.
  // Who has yet to hear that a version was given up before they published it.
  struct Late {
    uint64_t version = 0;
    std::set<uint32_t> trainers;
    absl::Status status;
  };
  Late late_;
  bool must_fence_ = false;  // Somebody was given up without a word.
  uint64_t committed_version_ = 0;
  uint64_t updates_committed_ = 0;
  uint64_t updates_aborted_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_COORDINATOR_H_
