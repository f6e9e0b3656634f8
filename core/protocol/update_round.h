// SPDX-License-Identifier: Apache-2.0

// The controller's state of one update of one group, from the first publish to the last SHOWN.
//
// Pure: events go in, actions come out. Implements all rules of the two-phase commit.
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

// The actions of a round, which the coordinator executes in order.
class RoundActions {
 public:
  virtual ~RoundActions() = default;
  virtual void ToWorker(uint32_t worker, proto::ControllerMessage message) = 0;
  virtual void ToSender(const RankId& sender, proto::ControllerMessage message) = 0;
  // Records the decision to commit durably. OnRecorded() follows.
  virtual void Record() = 0;
  // Checks whether other senders hold the data of a lost sender. OnRestUnavailable() follows if
  // they do not. `sender` is its number in the plan.
  virtual void CheckRest(uint32_t sender) = 0;
  // Plans the missing routes of this round, from the senders in `holders`. Another round then
  // continues this one. OnRestUnavailable() follows if no such plan exists.
  virtual void PlanRest(std::set<RankPair> lacking, std::set<uint32_t> holders) = 0;
  // Tells the publishing trainers that every worker has received the whole version. Called a second
  // time when every worker's user has accepted the version, and the round waits for Decide().
  virtual void TellArrived() = 0;
  // Tells the publishing trainers the outcome of the version. Called once.
  virtual void TellOutcome(bool committed, const absl::Status& status) = 0;
  // Returns the other version that the trainer is publishing, or 0.
  virtual uint64_t OtherVersionOf(const RankId& trainer) const = 0;
};

// Returns the error that a worker cannot show a committed version.
absl::Status CannotShow(uint64_t version, uint32_t worker, const absl::Status& why);

// The ranks that take part in a round.
struct RoundMembers {
  std::vector<RankId> senders;  // By the sender's number in the plan.
  std::set<uint32_t> absent;    // The numbers of senders that are absent. They have no routes.
  std::set<uint32_t> workers;   // The workers of the group that get the version.
};

enum class IfLanesDie : uint8_t {
  kAbort,
  kPlanRest,  // Another round fetches the missing data from other senders.
};

// The senders are the trainers, or the workers of another group that lends its shown version.
// Events of ranks that are not members of the round are ignored.
class UpdateRound {
 public:
  // `plan` is the group's plan.
  UpdateRound(const UpdateId& update, RoundMembers members, bool digests_off, absl::Time deadline,
              const Plan& plan, IfLanesDie if_lanes_die, RoundActions* actions);

  // Makes the round wait for Decide() once all workers have received the version. Call it before
  // Begin().
  void HoldCommit() { held_ = true; }
  // Sends PREPARE to every worker. `catch_up`: the version was published before. `continued`: the
  // update that this round continues by bringing its missing routes, or null.
  void Begin(bool catch_up, const UpdateId* continued, absl::Time now);

  // Handles a publish: the sender holds this version until it is told the outcome. START and ABORT
  // name `attempt`.
  void OnPublish(const RankId& sender, uint64_t attempt, absl::Time deadline);
  void OnReady(uint32_t worker, const proto::Ready& ready);
  void OnRefused(uint32_t worker, const absl::Status& status);
  // The worker has received the whole version, and asks its user.
  void OnReceived(uint32_t worker);
  void OnArrived(uint32_t worker);
  // Lets the group show the version. Has no effect if the round does not wait for it.
  void Decide();
  void OnLacking(uint32_t worker, const std::set<uint32_t>& senders);
  void OnKept(const RankId& sender, bool kept);
  void OnRestUnavailable(const absl::Status& status);
  // Handles the result of RoundActions::Record().
  void OnRecorded(Recorded recorded, const absl::Status& status);
  // `unchanged`: the worker showed equal bytes before.
  void OnShown(uint32_t worker, bool unchanged);
  // The version that was sent must not be shown.
  void OnSenderFailed(const RankId& sender, const absl::Status& status);
  // `wrong_base`: the worker takes whole chunks from now on.
  void OnWorkerFailed(uint32_t worker, const absl::Status& status, bool wrong_base);
  void OnLaneFailed(const RankId& sender, uint32_t worker, const absl::Status& status);
  // The lane between two co-owners is dead.
  void OnCoOwnerLost(const RankId& trainer, const RankId& other, const absl::Status& status);
  void OnSenderGone(const RankId& sender, const absl::Status& status);
  // A relaying worker has no writes of the aborted version outstanding.
  void OnRelayStopped(uint32_t worker);
  void OnWorkerGone(uint32_t worker, const absl::Status& status);
  void OnTime(absl::Time now);
  // Gives the version up. Has no effect once the decision may be recorded.
  void GiveUp(const absl::Status& why) { Abort(why); }
  // Moves the deadline if every worker is READY and the version is not decided.
  void ExtendTo(absl::Time deadline) {
    if (state_ == State::kMoving) deadline_ = deadline;
  }

  // Returns true once the group has shown the version, or has given it up and no worker relays it
  // any more. The next update may renew memory that a relay's late write would address. Trainers
  // need no such check: they stop before they publish again.
  bool over() const {
    return state_ == State::kShown || (state_ == State::kAborted && RunningRelays().empty());
  }
  bool aborted() const { return state_ == State::kAborted; }
  // Returns true if the version can succeed in another round.
  bool again() const { return again_; }
  bool committed() const { return state_ == State::kShown || state_ == State::kDecided; }
  // Returns true while the round is neither decided nor aborted.
  bool undecided() const { return Abortable() || state_ == State::kRecording; }
  // Returns true while the round waits for Decide() with the whole version received.
  bool waits_for_word() const { return state_ == State::kArrived && held_; }
  // Returns true once every worker has received the whole version, if the round waits for Decide().
  bool received() const { return held_ && received_ == workers_; }
  // Returns true if every worker has shown the version, and showed equal bytes before.
  bool unchanged() const { return unchanged_ == workers_; }
  const UpdateId& update() const { return update_; }
  // Returns InfiniteFuture if no deadline is pending.
  absl::Time deadline() const;
  // Returns true if the rank sends in this round, is not lost and has not published yet.
  bool IsAwaited(const RankId& sender) const;
  // Returns true if the rank has published with that attempt, and is not lost.
  bool HasPublished(const RankId& sender, uint64_t attempt) const;
  // Returns the workers that were told to relay and have not reported that they stopped.
  std::set<uint32_t> RunningRelays() const;
  // Describes what the round waits for, as "READY of worker 1; publish() by trainer 0".
  std::string DescribeWaiting() const;

 private:
  // In kRecording the round cannot be aborted: the decision may be on disk already. In kContinued
  // everything has arrived except the routes of dead lanes, which another round is about to bring.
  // In kArrived everything has arrived, and the round waits for trainers that have yet to publish,
  // or for Decide().
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
    bool stopped = false;  // The sender has stopped relaying, or is gone.
    bool asked_to_keep = false;
    std::optional<bool> kept;    // The sender's answer; nullopt until it comes.
    std::set<uint32_t> workers;  // The workers that its routes go to.
    size_t unready = 0;          // The number of these workers that are not READY.
    bool trades = false;         // Exchanges maxima with other senders.
    bool relays = false;  // The sender is a worker that relays what it receives in this round.
  };

  // Returns true if the round can still be aborted.
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
  // Returns a sender's number in the plan.
  uint32_t NumberOf(const Sender& sender) const {
    return static_cast<uint32_t>(&sender - senders_.data());
  }
  void RecordIfAllPublished();
  void LoseLane(uint32_t sender, uint32_t worker, const absl::Status& why);
  void TellLost(const std::set<uint32_t>& senders, uint32_t worker);
  void AskToKeep();
  void PlanRestIfKnown();
  void AbortTraded(const absl::Status& why);
  void StartReadySenders();
  void Abort(const absl::Status& why);
  void FinishShown();

  const UpdateId update_;
  const bool digests_off_;
  absl::Time deadline_;
  RoundActions* const actions_;
  State state_ = State::kPreparing;
  std::vector<Sender> senders_;                  // Relaying workers come last.
  absl::flat_hash_map<RankId, size_t> numbers_;  // The index of each sender in senders_.
  const std::set<uint32_t> workers_;
  // By worker: the senders with routes to it.
  std::map<uint32_t, std::vector<uint32_t>> senders_of_;
  std::map<uint32_t, proto::Ready> ready_;
  std::set<uint32_t> received_;  // Workers that have received the whole version.
  std::set<uint32_t> arrived_;   // Workers that have also voted to show it.
  std::set<uint32_t> shown_;
  std::set<uint32_t> unchanged_;  // Workers that showed equal bytes before.
  std::set<uint32_t> gone_;
  std::map<uint32_t, absl::Status> unable_;  // Workers that cannot show the committed version.
  std::set<uint32_t> unsettled_;  // Workers that are in none of shown_, gone_ and unable_.
  bool again_ = false;
  absl::Status abort_status_;
  const IfLanesDie if_lanes_die_;
  absl::Status lost_status_;  // The error of the first lane that died with routes outstanding.
  std::set<RankPair> told_lost_;
  // By worker: the senders whose routes are missing.
  std::map<uint32_t, std::set<uint32_t>> lacking_;
  bool started_ = false;  // START was sent to a sender, so data may land.
  bool held_ = false;     // The round has to wait for Decide(), which has not been called.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_UPDATE_ROUND_H_
