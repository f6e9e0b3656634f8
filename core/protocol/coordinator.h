// The controller's mind: who is here, which plan holds, which update is going on.
//
// Pure: messages and the time go in, actions come out. It opens nothing and waits for nothing;
// planning and the decision log are jobs that somebody else runs, whose completion is another call.
#ifndef WAYBILL_CORE_PROTOCOL_COORDINATOR_H_
#define WAYBILL_CORE_PROTOCOL_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/plan/plan.h"
#include "core/protocol/decision.h"
#include "core/protocol/membership.h"
#include "core/protocol/messages.pb.h"
#include "core/protocol/update_round.h"

namespace waybill {

struct CoordinatorOptions {
  std::string job = "waybill";
  std::string token;      // Every rank has to show it; empty if none is wanted.
  uint32_t trainers = 0;  // How many the job needs; 0: as many as they declare.
  uint32_t workers = 0;
  // Tells the epochs of this controller from those of the one before it. Drawn at random.
  uint32_t incarnation = 1;
  // True if the decisions that were loaded are all that were ever made: then a vote without a
  // decision was not committed.
  bool decisions_are_durable = false;
  // How long a rank that joins waits for the job to become whole, unless its own deadline is
  // earlier.
  absl::Duration join_timeout = absl::Minutes(2);
  // The deadline of a publish that names none.
  absl::Duration publish_timeout = absl::Seconds(60);
  // How long a publish waits for a rank that is missing, or was lost while it waited.
  absl::Duration absence_timeout = absl::Seconds(5);
  // How long ranks may take to offer and to connect the lanes of an epoch.
  absl::Duration lanes_timeout = absl::Seconds(30);
  // How long a rank may take to say that it lives when another process claims its place.
  absl::Duration challenge_timeout = absl::Seconds(2);
};

class CoordinatorActions {
 public:
  // Runs under whatever protects the coordinator, with the time.
  using Completion = std::function<void(absl::Time now)>;
  // Computes for as long as it needs, without the coordinator.
  using Work = std::function<Completion()>;

  virtual ~CoordinatorActions() = default;
  virtual void Send(ConnectionId connection, proto::ControllerMessage message) = 0;
  // Closes the stream after what was sent has left. The coordinator forgets it at once.
  virtual void Close(ConnectionId connection) = 0;
  // Runs `work` elsewhere, then its completion. Never from within this call.
  virtual void Compute(Work work) = 0;
  // Makes a decision durable. Coordinator::OnRecorded() follows with the same ticket, never from
  // within this call.
  virtual void Record(uint64_t ticket, const Decision& decision) = 0;
};

// Not thread-safe.
class Coordinator final : private RoundActions {
 public:
  // `decisions`: those of controllers before this one, oldest first. `actions` outlives the
  // coordinator, and runs no completion after its end.
  Coordinator(CoordinatorOptions options, const std::vector<Decision>& decisions,
              CoordinatorActions* actions);
  ~Coordinator() override;

  void OnMessage(ConnectionId connection, const proto::RankMessage& message, absl::Time now);
  // The stream has ended.
  void OnGone(ConnectionId connection, absl::Time now);
  // `status` says why where the decision is not durable.
  void OnRecorded(uint64_t ticket, Recorded recorded, const absl::Status& status, absl::Time now);
  void OnTime(absl::Time now);
  // When OnTime() has something to do next; later than the time of the last call.
  absl::Time next_deadline() const;

  bool TokenIsRight(absl::string_view token) const { return members_.TokenIsRight(token); }
  // Returns true if the stream belongs to a rank that showed the token.
  bool IsAdmitted(ConnectionId connection) const;
  // Not OK once it is not known whether a decision was recorded: this controller decides nothing
  // any more, and has to be replaced by one that reads the log.
  const absl::Status& halted() const { return halted_; }
  proto::StatusReply Status() const;

 private:
  enum class Phase { kGathering, kPlanning, kOffering, kConnecting, kReady };
  struct PendingPublish {
    uint32_t trainer;
    uint64_t version;
    uint64_t attempt;
    bool digests_off;
    absl::Time deadline;
    absl::Time received;
  };
  // Another process that claims a rank which is here.
  struct Claim {
    ConnectionId incumbent;
    absl::Time deadline;
    std::vector<proto::RankMessage> messages;  // Handled once it is admitted.
  };
  // A version that some trainers know to have been given up, and those that have yet to hear of it.
  // It must not be committed because these publish it.
  struct GivenUp {
    std::set<uint32_t> trainers;
    absl::Status status;
  };

  // RoundActions.
  void ToWorker(uint32_t worker, proto::ControllerMessage message) override;
  void ToTrainer(uint32_t trainer, proto::ControllerMessage message) override;
  void Record(const std::string& group) override;

  void ToRank(RankId id, proto::ControllerMessage message);
  void Dismiss(ConnectionId connection, const absl::Status& status);
  void DismissMember(ConnectionId connection, const absl::Status& status, absl::Time now);
  void DismissNewcomers(const absl::Status& status, absl::Time now);
  void HangUp(ConnectionId connection, const absl::Status& why, absl::Time now);

  void OnJoin(ConnectionId connection, const proto::RankMessage& message, absl::Time now);
  void Admit(ConnectionId connection, const proto::Join& join, absl::Time now);
  void SettleClaims(ConnectionId incumbent, const absl::Status& refusal, absl::Time now);
  void OnManifest(const Member& member, const std::string& encoded);
  void OnManifestChecked(ConnectionId connection, absl::StatusOr<Manifest> manifest,
                         absl::Time now);
  void Remove(ConnectionId connection, const absl::Status& why, absl::Time now);

  void BeginGathering();
  void TryBeginEpoch(absl::Time now);
  void OnPlanned(uint64_t ticket, absl::StatusOr<Plan> plan, absl::Time now);
  void SendPlan(const Member& member);
  void OnOffers(Member& member, const proto::Offers& offers);
  static void OnReport(Member& member, const proto::RankReport& report);
  void SendConnect();
  void OnConnected(Member& member, const proto::Connected& connected, absl::Time now);
  void OnConnectFailed(const Member& member, const absl::Status& why, absl::Time now);
  void OnNics(Member& member, const proto::Nics& nics, absl::Time now);
  void OnLaneFailed(Member& member, const proto::LaneFailed& failed, absl::Time now);
  void RetryLanesLater(absl::Time now);
  void ReplaceLanes(absl::Time now);

  const Decision* FindDecision(const std::string& group, uint64_t epoch, uint32_t sequence) const;
  bool ShowsOrKnows(const std::string& group, uint64_t version) const;
  void ResolveDoubt(Member& member, bool everybody_is_here);
  void ResolveDoubts(bool everybody_is_here);
  void TellUndecided(Member& member);

  absl::Status CheckPublish(const Member& member, const proto::Publish& publish) const;
  absl::Status NotLater(uint64_t version) const;
  void OnPublish(const Member& member, const proto::Publish& publish, absl::Time now);
  void OnWithdraw(const Member& member, const proto::Withdraw& withdraw);
  void RefusePublish(uint32_t trainer, uint64_t version, uint64_t attempt,
                     const absl::Status& status);
  // Until when the publish waits for ranks that are missing.
  absl::Time AbsenceDeadline(const PendingPublish& publish) const;
  void RefuseLatePublishes(absl::Time now);
  void OnRoundMessage(Member& member, const proto::RankMessage& message);
  void TellRenewal(const Member& member, const proto::Ready& ready);
  void BeginRound(absl::Time now);
  void FinishRoundIfOver();
  // Does everything that has become possible.
  void Advance(absl::Time now);
  std::string DescribeWaiting() const;
  uint64_t EpochNumber() const { return epoch_ & 0xF'FFFF; }

  const CoordinatorOptions options_;
  CoordinatorActions* const actions_;
  Membership members_;
  std::map<ConnectionId, Claim> claims_;
  absl::Status halted_;

  Phase phase_ = Phase::kGathering;
  absl::Time lanes_deadline_ = absl::InfiniteFuture();  // While offering and connecting.
  absl::Time retry_at_ = absl::InfinitePast();          // No epoch begins before.
  uint32_t lane_troubles_ = 0;                          // Since an update committed.
  absl::Status last_lane_trouble_;
  bool nics_changed_ = false;  // Since the plan was made.
  bool lane_lost_ = false;     // Between ranks that live, in this epoch.
  uint64_t lanes_lost_ = 0;    // Epochs that began because of that.
  uint64_t epoch_;             // The controller's incarnation, then 20 bits that count.
  uint64_t plan_ticket_ = 0;
  Plan plan_;

  uint32_t sequence_ = 0;
  std::unique_ptr<UpdateRound> round_;
  std::vector<PendingPublish> pending_;
  absl::Time incomplete_since_ = absl::InfinitePast();  // When a whole job last lost a rank.
  std::map<uint64_t, GivenUp> given_up_;                // By version; later than what is committed.
  uint64_t record_ticket_ = 0;
  std::map<uint64_t, Decision> recordings_;
  std::map<std::string, std::vector<Decision>> decisions_;  // The last few of each group.
  uint64_t committed_version_ = 0;
  uint64_t updates_committed_ = 0;
  uint64_t updates_aborted_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_COORDINATOR_H_
