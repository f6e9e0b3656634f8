// SPDX-License-Identifier: Apache-2.0

// One update of one group as the controller sees it, from the first publish to the last SHOWN.
//
// Pure: events in, actions out. Every rule of the two-phase commit is here.
#ifndef WAYBILL_CORE_PROTOCOL_UPDATE_ROUND_H_
#define WAYBILL_CORE_PROTOCOL_UPDATE_ROUND_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/plan/plan.h"
#include "core/plan/rest.h"
#include "core/protocol/decision.h"
#include "core/protocol/messages.pb.h"
#include "core/protocol/update.h"

namespace waybill {

// What the round wants done; the coordinator does it, in order.
class RoundActions {
 public:
  virtual ~RoundActions() = default;
  virtual void ToWorker(uint32_t worker, proto::ControllerMessage message) = 0;
  virtual void ToSender(const RankId& sender, proto::ControllerMessage message) = 0;
  // Makes the decision to commit durable; OnRecorded() follows.
  virtual void Record() = 0;
  // Finds out whether others hold what a sender that is gone was to bring; OnNoRest() follows if
  // they do not. `sender` is counted as the plan counts it.
  virtual void CheckRest(uint32_t sender) = 0;
  // Plans what is lacking of this round, from the senders that hold it. Another round continues
  // this one then; OnNoRest() follows if it cannot be planned.
  virtual void PlanRest(std::set<RankPair> lacking, std::set<uint32_t> holders) = 0;
  // Tells whoever published it that every worker has all of it; and again when every worker's user
  // lets it be shown, and their word is waited for.
  virtual void TellArrived() = 0;
  // Tells whoever published it what became of the version. Called once.
  virtual void TellOutcome(bool committed, const absl::Status& status) = 0;
  // Returns another version that the trainer publishes, or 0.
  virtual uint64_t OtherVersionOf(const RankId& trainer) const = 0;
};

// Says that a worker cannot show what is committed.
absl::Status CannotShow(uint64_t version, uint32_t worker, const absl::Status& why);

// The ranks that take part in a round.
struct RoundMembers {
  std::vector<RankId> senders;  // As the plan counts trainers.
  std::set<uint32_t> absent;    // The senders among them that are not here; they have no routes.
  std::set<uint32_t> workers;   // The group's that get the version.
};

enum class IfLanesDie : uint8_t {
  kAbort,
  kPlanRest,  // What they were to bring comes by others, in another round.
};

// The senders are the trainers, or the workers of another group that lend what they show. An event
// of a rank that is not a member of the round does nothing.
class UpdateRound {
 public:
  // `plan`: the group's.
  UpdateRound(const UpdateId& update, RoundMembers members, bool digests_off, absl::Time deadline,
              const Plan& plan, IfLanesDie if_lanes_die, RoundActions* actions);

  // Makes the round wait for Decide() once all workers have all of it. Comes before Begin().
  void HoldCommit() { held_ = true; }
  // Sends PREPARE to every worker. `catch_up`: the version was published before. `continued`: the
  // round whose rest this one brings, or null.
  void Begin(bool catch_up, const UpdateId* continued, absl::Time now);

  // A sender holds this version until it is told the outcome: a trainer has called publish(). START
  // and ABORT name the attempt.
  void OnPublish(const RankId& sender, uint64_t attempt, absl::Time deadline);
  void OnReady(uint32_t worker, const proto::Ready& ready);
  void OnRefused(uint32_t worker, const absl::Status& status);
  // The worker has all of it, and asks its user.
  void OnReceived(uint32_t worker);
  void OnArrived(uint32_t worker);
  // The group may show the version. Does nothing if that was not waited for.
  void Decide();
  void OnLacking(uint32_t worker, const std::set<uint32_t>& senders);
  void OnKept(const RankId& sender, bool kept);
  void OnNoRest(const absl::Status& status);
  // The answer to RoundActions::Record().
  void OnRecorded(Recorded recorded, const absl::Status& status);
  // `unchanged`: the worker showed the same bytes before.
  void OnShown(uint32_t worker, bool unchanged);
  // What was sent must not be shown.
  void OnSenderFailed(const RankId& sender, const absl::Status& status);
  void OnWorkerFailed(uint32_t worker, const absl::Status& status);
  void OnLaneFailed(const RankId& sender, uint32_t worker, const absl::Status& status);
  // The lane between two trainers that own blocks together is dead.
  void OnCoOwnerLost(const RankId& trainer, const RankId& other, const absl::Status& status);
  void OnSenderGone(const RankId& sender, const absl::Status& status);
  // A worker that relays writes nothing of the aborted version any more.
  void OnRelayStopped(uint32_t worker);
  void OnWorkerGone(uint32_t worker, const absl::Status& status);
  void OnTime(absl::Time now);
  // The group is not to show this version. Does nothing once the decision may be recorded.
  void GiveUp(const absl::Status& why) { Abort(why); }
  // Moves the deadline, if every worker is READY and nothing is decided.
  void ExtendTo(absl::Time deadline) {
    if (state_ == State::kMoving) deadline_ = deadline;
  }

  // Returns true once the group has shown the version or given it up, and no worker relays what was
  // given up: a late write would reach for memory that the next update has renewed. Trainers stop
  // before they publish again.
  bool over() const {
    return state_ == State::kShown || (state_ == State::kAborted && RelaysThatRun().empty());
  }
  bool aborted() const { return state_ == State::kAborted; }
  bool committed() const { return state_ == State::kShown || state_ == State::kDecided; }
  // Returns true while it is not known whether the group commits.
  bool undecided() const { return Abortable() || state_ == State::kRecording; }
  // Returns true while all of it is here, and Decide() is waited for.
  bool waits_for_word() const { return state_ == State::kArrived; }
  // Returns true once every worker of a version that waits for Decide() has all of it.
  bool received() const { return held_ && received_ == workers_; }
  // Returns true if every worker has shown the version, and showed the same bytes before.
  bool unchanged() const { return unchanged_ == workers_; }
  const UpdateId& update() const { return update_; }
  // InfiniteFuture when nothing is left that time could end.
  absl::Time deadline() const;
  // Returns true if the rank sends in this round, is still there and has not published yet.
  bool IsAwaited(const RankId& sender) const;
  // Returns true if the rank has published with that attempt.
  bool HasPublished(const RankId& sender, uint64_t attempt) const;
  // Returns the workers that were started to relay, and have not said that they have stopped.
  std::set<uint32_t> RelaysThatRun() const;
  // Why the group has given the version up; OK if it has not.
  const absl::Status& abort_status() const { return abort_status_; }
  // "READY of worker 1; publish() by trainer 0"
  std::string DescribeWaiting() const;

 private:
  // A group in kRecording cannot be aborted: its decision may be on disk already. In kContinued all
  // has arrived but what dead lanes were to bring, and another round is about to bring that. In
  // kArrived all has, and the trainers' word is waited for.
  enum class State {
    kPreparing,
    kMoving,
    kContinued,
    kArrived,
    kRecording,
    kDecided,
    kShown,
    kAborted
  };
  struct Sender {
    RankId id;
    bool published = false;
    uint64_t attempt = 0;
    bool started = false;
    bool gone = false;
    bool stopped = false;  // It relays nothing more, or is gone.
    bool asked_to_keep = false;
    std::optional<bool> kept;    // What it answered.
    std::set<uint32_t> workers;  // The workers that its routes go to.
    size_t unready = 0;          // How many of them are not READY.
    bool trades = false;         // Exchanges maxima with other senders.
    bool relays = false;         // It sends what it receives in this round.
  };

  // Returns true if an event can still make the group give the version up.
  bool Abortable() const {
    return state_ == State::kPreparing || state_ == State::kMoving || state_ == State::kContinued ||
           state_ == State::kArrived;
  }
  // Returns null for a rank that does not send in this round.
  const Sender* Find(const RankId& id) const;
  Sender* Find(const RankId& id) {
    return const_cast<Sender*>(static_cast<const UpdateRound*>(this)->Find(id));
  }
  bool HasToSend(const Sender& sender) const;
  // The number of a sender, as the plan counts it.
  uint32_t NumberOf(const Sender& sender) const {
    return static_cast<uint32_t>(&sender - senders_.data());
  }
  void Record();
  void LoseLane(uint32_t sender, uint32_t worker, const absl::Status& why);
  void TellLost(const std::set<uint32_t>& senders, uint32_t worker);
  void AskToKeep();
  void PlanRestIfKnown();
  void AbortTraded(const absl::Status& why);
  void StartWhoCan();
  void Abort(const absl::Status& why);
  void FinishShown();

  const UpdateId update_;
  const bool digests_off_;
  absl::Time deadline_;
  RoundActions* const actions_;
  State state_ = State::kPreparing;
  std::vector<Sender> senders_;                  // Those that relay come last.
  absl::flat_hash_map<RankId, size_t> numbers_;  // Of the senders.
  const std::set<uint32_t> workers_;
  std::map<uint32_t, std::vector<uint32_t>> senders_of_;  // Whose routes go to each worker.
  std::map<uint32_t, proto::Ready> ready_;
  std::set<uint32_t> received_;  // Workers that have all of it.
  std::set<uint32_t> arrived_;   // Those of them that let it be shown.
  std::set<uint32_t> shown_;
  std::set<uint32_t> unchanged_;  // Showed the same bytes before.
  std::set<uint32_t> gone_;
  std::map<uint32_t, absl::Status> unable_;  // Workers that cannot show what is decided.
  std::set<uint32_t> unsettled_;             // Workers that are none of these three.
  absl::Status abort_status_;
  const IfLanesDie if_lanes_die_;
  absl::Status lost_status_;  // Why the first lane is lost that had something to bring.
  std::set<RankPair> told_lost_;
  std::map<uint32_t, std::set<uint32_t>> lacking_;  // By worker: the senders.
  bool started_ = false;                            // The first START is out: data may land.
  bool held_ = false;                               // Decide() has not come, and has to.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_UPDATE_ROUND_H_
