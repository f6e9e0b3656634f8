// SPDX-License-Identifier: Apache-2.0

// The controller's mind: who is here, which plans hold, which updates are going on.
//
// Pure: messages and the time go in, actions come out. It opens nothing and waits for nothing;
// planning and the decision log are jobs that somebody else runs, whose completion is another call.
#ifndef WAYBILL_CORE_PROTOCOL_COORDINATOR_H_
#define WAYBILL_CORE_PROTOCOL_COORDINATOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/plan/plan.h"
#include "core/plan/rest.h"
#include "core/protocol/catch_up_attempts.h"
#include "core/protocol/decision.h"
#include "core/protocol/decisions.h"
#include "core/protocol/manifest_parts.h"
#include "core/protocol/membership.h"
#include "core/protocol/messages.pb.h"
#include "core/protocol/publications.h"
#include "core/protocol/standings.h"
#include "core/protocol/term.h"
#include "core/protocol/timeouts.h"
#include "core/protocol/update_round.h"

namespace waybill {

struct CoordinatorOptions {
  std::string job = "waybill";
  // The groups without which no version is published. A publish goes without any other that is not
  // whole.
  std::set<std::string> required_groups;
  // Tells the epochs of this controller from those of the one before it. Drawn at random.
  uint32_t incarnation = 1;
  // True if the decisions that were loaded are all that were ever made: then a vote without a
  // decision was not committed.
  bool decisions_are_durable = false;
  // How long a rank that joins waits for its term, unless its own deadline is earlier.
  absl::Duration join_timeout = kJoinTimeout;
  // How long a publish waits for ranks that are missing, or were lost while it waited.
  absl::Duration absence_timeout = absl::Seconds(5);
  // How long ranks may take to offer and to connect the lanes of a term.
  absl::Duration lanes_timeout = absl::Seconds(30);
  // Whether a group's workers relay what several of them get alike.
  Relays relays = Relays::kWherePredictedFaster;
  // How long a rank may take to say that it lives when another process claims its place.
  absl::Duration challenge_timeout = absl::Seconds(2);
};

class CoordinatorActions {
 public:
  // Runs while the coordinator is protected as in its other calls. `now` is the time then.
  using Completion = std::function<void(absl::Time now)>;
  // Calls task(i) for each i below `count`, perhaps on several threads at a time, and waits for
  // all.
  using ForEach = std::function<void(uint32_t count, const std::function<void(uint32_t)>& task)>;
  static void InTurn(uint32_t count, const std::function<void(uint32_t)>& task) {
    for (uint32_t i = 0; i < count; ++i) task(i);
  }
  // A long computation, which does not touch the coordinator.
  using Work = std::function<Completion(const ForEach& for_each)>;

  virtual ~CoordinatorActions() = default;
  virtual void Send(ConnectionId connection, proto::ControllerMessage message) = 0;
  // Closes the stream once all earlier messages have left. The coordinator forgets it at once.
  virtual void Close(ConnectionId connection) = 0;
  // Runs `work` on another thread, then its completion. Neither runs within this call.
  virtual void Compute(Work work) = 0;
  // Makes a decision durable. Coordinator::OnRecorded() follows with the same ticket, but not
  // within this call.
  virtual void Record(uint64_t ticket, const Decision& decision) = 0;
  // Deletes the recorded decisions of a group, which are not needed any more.
  virtual void Forget(const std::string& /*group*/) {}
};

// The number of low bits of an epoch that count terms. The bits above them are the controller's
// incarnation.
inline constexpr int kEpochCountBits = 20;

// Each group has terms. A term consists of the group's workers, all trainers, a plan and lanes. It
// ends when one of its members changes or a lane dies, which other groups do not notice. A version
// is published to all groups that are whole, in one round for each. A group that has missed a
// version first has a term with the workers of a group that shows it, which lend it, and then one
// with the trainers.
//
// A group is forgotten once it has no worker and its round is over. Its decisions are forgotten ten
// minutes later, unless they are about the job's newest version.
//
// Not thread-safe.
class Coordinator final {
 public:
  // `decisions` are those of earlier controllers, oldest first. `actions` outlives the coordinator,
  // and runs no completion after the coordinator's end.
  Coordinator(CoordinatorOptions options, const std::vector<Decision>& decisions,
              CoordinatorActions* actions);
  ~Coordinator();

  void OnMessage(ConnectionId connection, const proto::RankMessage& message, absl::Time now);
  // The stream has ended.
  void OnGone(ConnectionId connection, absl::Time now);
  // Handles the end of CoordinatorActions::Record(). If the decision is not durable, `status` says
  // why.
  void OnRecorded(uint64_t ticket, Recorded recorded, const absl::Status& status, absl::Time now);
  void OnTime(absl::Time now);
  // Dismisses the workers of a group, and does not require the group any more. Returns the number
  // of workers. kNotFound: there is no such group.
  absl::StatusOr<uint32_t> RemoveGroup(const std::string& name, absl::Time now);
  // Returns the time at which OnTime() has to be called; it is later than the last `now`.
  absl::Time next_deadline() const;

  // Returns true if the stream belongs to a rank that has joined.
  bool IsAdmitted(ConnectionId connection) const;
  // Returns an error once it is unknown whether a decision was recorded. Such a coordinator decides
  // nothing any more. Another one that reads the log has to replace it.
  const absl::Status& halted() const { return halted_; }
  proto::StatusReply Status(const proto::StatusRequest& request = {}) const;
  // Returns the joined workers of a group, or of all groups if `group` is empty.
  std::vector<std::pair<ConnectionId, RankId>> Workers(const std::string& group) const;
  // Returns a manifest that has only the tensors that the trainers declare, each once.
  //
  // kUnavailable: the manifests of some trainers, which the error names, have not arrived.
  absl::StatusOr<Manifest> JobTensors() const;

 private:
  using Phase = Term::Phase;

  // What is lacking of a version whose round is to be continued.
  struct Rest {
    UpdateId continued;  // The update of that round.
    Plan plan;           // The plan by which it began.
    std::set<RankPair> lacking;
    std::set<uint32_t> holders;  // The trainers that still have the version.
  };

  // A rank's table, as it is sent.
  struct Table {
    std::string digest;  // SHA-256 of what `bytes` were compressed from.
    std::shared_ptr<const std::string> bytes;
  };
  // The tables of a plan, by number.
  struct Tables {
    std::vector<Table> senders;
    std::vector<Table> workers;
  };
  struct Planned {
    absl::StatusOr<Plan> plan;
    Tables tables;
  };

  // A group, with its term and its round.
  struct Group final : public RoundActions {
    Group(std::string n, Coordinator* c)
        : name(std::move(n)),
          number(++c->last_group_number_),
          coordinator(*c),
          workers(c->members_.WorkersOf(name)),
          decisions(c->decisions_.Of(name)),
          term(name) {}

    void ToWorker(uint32_t worker, proto::ControllerMessage message) override;
    void ToSender(const RankId& sender, proto::ControllerMessage message) override;
    void Record() override;
    void CheckRest(uint32_t sender) override;
    void PlanRest(std::set<RankPair> lacking, std::set<uint32_t> holders) override;
    void TellArrived() override;
    void TellOutcome(bool committed, const absl::Status& status) override;
    uint64_t OtherVersionOf(const RankId& trainer) const override;

    const std::string name;
    const GroupNumber number;
    Coordinator& coordinator;
    const World& workers;  // The group's joined workers.
    const GroupDecisions& decisions;

    // Returns true if the workers fetch versions. Then no version is pushed to the group.
    bool fetches() const { return !workers.here.empty() && workers.here.begin()->second->fetches; }
    // Returns true while the trainers send a version to the group.
    bool updating() const { return round != nullptr && !catching_up; }

    Term term;
    // The time by which relays must have stopped. Finite while a given-up round is relayed.
    absl::Time stop_deadline = absl::InfiniteFuture();
    // Names the data that no trainer here holds. OK if nothing is missing, or if that is unknown.
    absl::Status holes;
    uint64_t lent_version = 0;  // The version that the term's lender lends.
    uint64_t lent_composition = 0;
    // Publishes wait for the loan until this time.
    absl::Time loan_patience = absl::InfinitePast();
    CatchUpAttempts attempts;
    Tables tables;  // The tables of the last plan in which the trainers send everything.
    // True while versions go to the group, or will go to it once all its workers are back.
    bool here = false;
    // The workers' fetch is answered once the group shows this version or a later one. 0 until the
    // version is known.
    uint64_t wanted_version = 0;
    uint64_t lost_version = 0;  // The last version that was given up since the last commit, or 0.
    absl::Status lost_status;   // Why lost_version was given up.

    uint32_t sequence = 0;
    std::unique_ptr<UpdateRound> round;
    bool tells_later = false;  // TellUndecided() waits until a worker has shown a version.
    bool catching_up = false;  // The round brings a version that was published earlier.
    // The cached result of VersionToLend(), or nullopt if it may have changed.
    std::optional<uint64_t> to_lend;
    std::optional<Rest> rest;  // Set until the round that brings these routes has begun.
  };

  // A process that claims the rank of a member.
  struct Claim {
    ConnectionId incumbent;
    absl::Time deadline;
    std::vector<proto::RankMessage> messages;  // Handled once the process is admitted.
  };
  // A group whose workers were lost and have not left. They may be on their way back.
  struct Lost {
    absl::Time until;  // Publishes expect the group until this time.
    std::string group;
    absl::Status why;
  };

  void ToRank(const World& world, uint32_t rank, proto::ControllerMessage message);
  void ToRank(const RankId& id, proto::ControllerMessage message);
  void Dismiss(ConnectionId connection, const absl::Status& status);
  void DismissMember(ConnectionId connection, const absl::Status& status, absl::Time now);
  void HangUp(ConnectionId connection, const absl::Status& why, absl::Time now);

  // --- membership (coordinator.cc) ---

  void OnJoin(ConnectionId connection, const proto::RankMessage& message, absl::Time now);
  void OnJoinAsAny(ConnectionId connection, proto::Join join, absl::Time now);
  void Admit(ConnectionId connection, const proto::Join& join, absl::Time now);
  void SendChallenge(ConnectionId incumbent);
  // Makes those that claim the place of `from` claim that of `to`. Returns true if there are any.
  bool MoveClaims(ConnectionId from, ConnectionId to, absl::Time now);
  void SettleClaims(ConnectionId incumbent, const absl::Status& refusal, absl::Time now);
  void OnManifest(Member& member, const std::string& head, absl::Time now);
  // Takes the manifests that are complete, and begins to decode those whose parts are all here.
  void GatherManifests(absl::Time now);
  void Remove(ConnectionId connection, const absl::Status& why, absl::Time now);
  static void OnReport(Member& member, const proto::RankReport& report);
  // Ends the terms that include the rank, or have to.
  void OnMembersChanged(const RankId& id);
  void SendGroupChange(const Member& member, const Group& group);
  void SendAllGroups(Member& member);
  // Tells the trainers which required group that fetches shows the oldest version, if that changed.
  void TellOldestShown();
  // Sets Group::here, and tells the trainers of a change.
  void SetHere(Group& group, bool here);
  // GroupNamed() and FindGroup() mark the group as changed, since their caller may change it, so
  // that Advance() visits it. GroupNamed() adds a group that is not known; FindGroup() and LookAt()
  // return null for it.
  Group& GroupNamed(const std::string& name);
  Group* FindGroup(const std::string& name);
  const Group* LookAt(const std::string& name) const;
  void MarkChanged(const Group& group) { changed_.insert(group.number); }
  void MarkAllChanged();
  // Updates the group's entry in standings_.
  void Settle(Group& group);
  Standing StandingOf(Group& group);
  void ForgetGroup(Group& group, absl::Time now);
  // Forgets lost groups and old decisions that nobody will ask for.
  void ForgetPast(absl::Time now);
  // Makes publishes not expect the group any more if it has no workers.
  void ForgetLost(const std::string& group);
  // Returns true if a worker of the lost group is here.
  bool IsBack(const Lost& lost) const;
  bool IsRequired(const Group& group) const { return required_groups_.contains(group.name); }
  // Returns true if the group has workers, or is required.
  bool IsExpected(const Group& group) const { return group.workers.size > 0 || IsRequired(group); }
  // Returns true if the group is expected, or its round is not over.
  bool GoesOn(const Group& group) const { return IsExpected(group) || group.round != nullptr; }
  // Returns the ranks of all trainers of the job, joined or not.
  std::set<uint32_t> AllTrainers() const;
  bool any_trainer_absent() const {
    return members_.trainers().here.size() < members_.trainers().size;
  }
  // Returns true if another process claims a trainer's rank, so that the set of trainers may soon
  // change.
  bool IsTrainerClaimed() const;
  // Returns the groups whose terms include the rank.
  std::vector<Group*> GroupsOf(const RankId& id);
  // Returns the joined members of the group's term: the group's workers and their senders.
  std::vector<Member*> MembersOf(const Group& group);
  // Takes every step that has become possible, in all groups that have changed or whose deadline is
  // over.
  void Advance(absl::Time now);
  void AdvanceGroups(absl::Time now);

  // --- terms (coordinator_terms.cc) ---

  // Returns the group whose term has that epoch and that end, or null if there is none.
  Group* FindTerm(const TermEnd& end, uint64_t epoch);
  // Returns the time at which a term with the trainers can begin; InfiniteFuture while ranks for it
  // are missing.
  absl::Time TermTime(const Group& group) const;
  void TryBeginTerm(Group& group, absl::Time now);
  // Returns a plan with its tables. Tables that are equal to one of `earlier` share its bytes.
  static Planned EncodeTables(absl::StatusOr<Plan> plan, const Tables& earlier,
                              const CoordinatorActions::ForEach& for_each);
  void OnPlanned(const std::string& name, uint64_t ticket, Planned planned, absl::Time now);
  void RefuseTerm(Group& group, const absl::Status& status, absl::Time now);
  void SendPlan(const Group& group, const TermEnd& end, const std::string& table);
  void OnOffers(const Member& member, const proto::Offers& offers);
  void OnConnected(Member& member, const proto::Connected& connected, absl::Time now);
  void OnNics(Member& member, const proto::Nics& nics, absl::Time now);
  void OnLaneFailed(const Member& member, const proto::LaneFailed& failed, absl::Time now);
  static void ReplaceLanes(Group& group, absl::Time now);
  // Closes the streams of members that have missed a deadline of their group.
  void CloseLateMembers(absl::Time now);
  // Returns true if ranks are missing without which no version goes to the group.
  bool IsMissingRanks(const Group& group) const {
    return TermTime(group) == absl::InfiniteFuture();
  }
  // Names the missing ranks; empty if there are none.
  std::string DescribeMissing(const Group& group) const;
  std::string DescribeWaiting(const Group& group) const;
  // Returns the newest version that the group has decided and that all its joined workers show, or
  // are about to show; 0 if there is none.
  uint64_t CommittedBy(const Group& group) const;
  // Returns StatusReply::switch_spread_us.
  absl::Duration SwitchSpread() const;
  // Adds the number of bytes that each sender sends to the worker in an update.
  void AddTraffic(const RankId& worker, proto::RankStatus& rank) const;

  // --- rounds that continue after a lane has died (coordinator_rest.cc) ---

  using Manifests = std::vector<std::shared_ptr<const Manifest>>;
  // Returns the manifests of a world, by rank. An absent rank has a manifest without shards, as has
  // a rank that is not among `holders` if that is not null.
  static Manifests ManifestsOf(const World& world, const std::set<uint32_t>* holders = nullptr);
  void CheckRest(Group& group, uint32_t sender);
  void BeginRestTerm(Group& group);
  void ContinueRound(Group& group, absl::Time now);

  // --- catching up (coordinator_loans.cc) ---

  // Returns the version that the group can lend: every worker shows it by one of the group's
  // decisions. Returns 0 if the workers show several versions, if one is missing, or if updates
  // write directly to the memory that a worker shows.
  static uint64_t VersionToLend(Group& group);
  // Returns the newest version that the worker shows or is about to show; 0 if no group of this job
  // has committed that version.
  uint64_t NewestVersion(const Member& worker) const;
  // Returns the newest version that a group can catch up on: the newest one that any group has
  // committed, or a later one that every trainer holds and whose publish is over.
  uint64_t NewestToGet() const;
  // Updates held_version_.
  void NoteHeld();
  // Returns true if the group fetches, and all of its workers wait for a version.
  static bool AwaitsFetch(const Group& group);
  // Answers the workers' fetches once the group shows Group::wanted_version.
  void AnswerFetches(Group& group);
  // Returns the oldest version that a worker of the group has if the group has missed a version and
  // wants to catch up; otherwise the largest number.
  uint64_t OldestToReplace(const Group& group) const;
  std::string FindLender(const Group& group);
  // Returns true if every trainer holds the newest version, and the group has missed it.
  bool IsHeldFor(const Group& group) const;
  void TryCatchUp(Group& group, absl::Time now);
  void GiveUpLoan(Group& group, const absl::Status& why);
  void EndLoan(Group& group);
  // Ends the group's loan or catch-up round, unless its decision may be recorded already.
  void EndCatchingUp(Group& group, const absl::Status& why, absl::Time now);
  void BeginCatchingUp(Group& group, uint64_t version, uint64_t composition, absl::Time now);

  // --- decisions (coordinator_decisions.cc) ---

  static bool ShowsOrKnows(const Group& group, uint64_t version);
  void NoteUnusable(Member& member, const proto::Failed& failed);
  static absl::Status WhyUnusable(const Group& group, uint64_t version);
  void ResolveDoubt(Member& member, bool everybody_is_here);
  void ResolveDoubts(const Group& group, bool everybody_is_here);
  static bool IsAboutToShow(const Group& group, uint64_t version);
  void TellUndecided(Group& group, Member& trainer);
  void TellUndecidedLater(Group& group);
  void NoteGivenUp(uint64_t version, uint32_t trainer);
  void RecordDecision(Group& group);

  // --- publishing (coordinator_publishing.cc) ---

  absl::Status CheckPublish(const Member& member, const proto::Publish& publish) const;
  absl::Status NotLater(uint64_t version) const;
  void OnPublish(const Member& member, const proto::Publish& publish, absl::Time now);
  void OnWithdraw(const Member& member, const proto::Withdraw& withdraw);
  void OnDecide(const Member& member, const proto::Decide& decide);
  // Returns true if the version, which goes to no group now, waits for more trainers to publish it.
  bool AwaitsTrainers(const Publication& publication, absl::Time now) const;
  // Gives the version up in all groups that have not decided it.
  void GiveUpParts(Publication& publication, const absl::Status& why);
  void SendArrived(uint32_t trainer, uint64_t attempt, const Group& group);
  void RefusePublish(uint32_t trainer, uint64_t version, uint64_t attempt,
                     const absl::Status& status);
  void SendOutcome(uint32_t trainer, uint64_t attempt, uint64_t version, const std::string& group,
                   const Part& part);
  absl::Status CompareReplicas(uint32_t trainer, const Publication& publication) const;
  // Returns an error if the trainer's version is not made of what the others' is, or of tensors
  // that no trainer has.
  absl::Status CheckComposition(uint32_t trainer, uint64_t composition,
                                const Publication& publication) const;
  // Refuses the version to all its trainers if it is not opened; otherwise gives it up in the
  // groups that have not decided it.
  void RefuseToAll(Publication& publication, const absl::Status& why);
  // Notes that a version is given up, and that trainers that have not published it must be told.
  void GiveUp(const Publication& publication, const absl::Status& why);
  void TakePart(uint32_t trainer, const Publication& publication);
  void GiveUpOvertaken(Publication& earlier, uint32_t trainer, uint64_t later);
  void GiveUpIfOvertaken(uint64_t version);
  // Ends a version in one group, and tells every trainer that publishes it.
  void EndPart(Publication& publication, const std::string& group, const Part& part);
  void GiveUpPart(Publication& publication, const std::string& group, const absl::Status& status);
  void GiveUpQueuedParts(Publication& publication, const absl::Status& status);
  bool IsSettling(const Group& group) const;
  // Returns true if another group lends to this one, and no rank is missing.
  bool Borrows(const Group& group) const { return group.term.lent() && !IsMissingRanks(group); }
  absl::Time OpeningTime(const Publication& publication) const;
  void Open(Publication& publication);
  void AdvancePart(Publication& publication, Group& group, absl::Time now);
  void AdvancePublications(absl::Time now);
  void FinishPublication(const Publication& publication);
  void ForgetTrainer(uint32_t trainer, const absl::Status& why);
  // Returns the time until which an unopened publish, received at `received`, waits for missing
  // ranks.
  absl::Time AbsenceDeadline(absl::Time received) const;
  // Returns true if the absence of ranks keeps every publish from being opened.
  bool IsAnybodyAbsent() const;
  // Names the absent ranks; empty if there are none.
  std::string DescribeAbsence() const;
  void EndLatePublishes(absl::Time now);
  void RefuseLatePublishes(Publication& publication, absl::Time now);
  // Returns the next time at which a waiting publish has to be opened or refused.
  absl::Time PublishDeadline() const;

  // --- rounds (coordinator_rounds.cc) ---

  void OnRoundMessage(Member& member, const proto::RankMessage& message, absl::Time now);
  void TellRenewal(const Group& group, const Member& member, const proto::Ready& ready);
  UpdateId NextUpdate(Group& group, uint64_t version, uint64_t composition);
  // Returns the members of a round that brings the version to all workers that lack it.
  RoundMembers MembersOfRound(const Group& group, uint64_t version);
  void BeginRound(Group& group, Publication& publication, absl::Time now);
  void FinishRoundIfOver(Group& group, absl::Time now);
  void OnOutcome(Group& group, bool committed, const absl::Status& status);

  const CoordinatorOptions options_;
  CoordinatorActions* const actions_;
  std::set<std::string> required_groups_;
  Membership members_;
  std::map<ConnectionId, Claim> claims_;
  ManifestParts parts_;
  absl::Status halted_;

  Decisions decisions_;                  // Outlives groups_, which refer to it.
  std::deque<Lost> lost_;                // In the order of Lost::until. Some groups may be back.
  std::map<std::string, Group> groups_;  // The groups for which GoesOn() is true.
  Standings standings_;                  // The sums over groups_ at the last Advance().
  GroupNumber last_group_number_ = 0;
  std::unordered_map<GroupNumber, Group*> numbered_;  // The groups of groups_.
  Standings::Groups changed_;                         // The groups that Advance() has to visit.
  Standings::Groups advanced_;        // Visited groups whose queued parts were not looked at yet.
  std::map<uint64_t, Group*> terms_;  // By epoch.
  // By deadline, members that were not established when they were admitted.
  std::set<std::pair<absl::Time, ConnectionId>> join_deadlines_;
  uint64_t last_plan_ticket_ = 0;
  uint64_t last_epoch_;

  Publications publications_;
  uint64_t held_version_ = 0;        // The version that every trainer holds; 0: none.
  uint64_t held_composition_ = 0;    // Of that version.
  proto::OldestShown oldest_shown_;  // The last message of this kind to the trainers.
  // The last time at which a complete term lost a member.
  absl::Time incomplete_since_ = absl::InfinitePast();
  // From this time on, terms begin without absent trainers.
  absl::Time trainers_settled_at_ = absl::InfiniteFuture();
  uint64_t record_ticket_ = 0;
  std::map<uint64_t, Decision> recordings_;
  uint64_t updates_committed_ = 0;
  uint64_t updates_aborted_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_COORDINATOR_H_
