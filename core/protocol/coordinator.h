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
  // Runs under whatever protects the coordinator, with the time.
  using Completion = std::function<void(absl::Time now)>;
  // Calls task(i) for each i below `count`, perhaps on several threads at a time, and waits for
  // all.
  using ForEach = std::function<void(uint32_t count, const std::function<void(uint32_t)>& task)>;
  static void InTurn(uint32_t count, const std::function<void(uint32_t)>& task) {
    for (uint32_t i = 0; i < count; ++i) task(i);
  }
  // Computes for as long as it needs, without the coordinator.
  using Work = std::function<Completion(const ForEach& for_each)>;

  virtual ~CoordinatorActions() = default;
  virtual void Send(ConnectionId connection, proto::ControllerMessage message) = 0;
  // Closes the stream after what was sent has left. The coordinator forgets it at once.
  virtual void Close(ConnectionId connection) = 0;
  // Runs `work` elsewhere, then its completion. Never from within this call.
  virtual void Compute(Work work) = 0;
  // Makes a decision durable. Coordinator::OnRecorded() follows with the same ticket, never from
  // within this call.
  virtual void Record(uint64_t ticket, const Decision& decision) = 0;
  // Nobody asks for the decisions of this group any more.
  virtual void Forget(const std::string& /*group*/) {}
};

// An epoch is the controller's incarnation, then this many bits that count terms.
inline constexpr int kEpochCountBits = 20;

// Not thread-safe.
// It forgets a group once nobody of it is here and its round is over, and the group's decisions ten
// minutes later, unless they have the job's newest version.
//
// Each group has terms: the group's workers and all trainers, a plan, lanes. A term ends when one
// of its members changes, or a lane dies; other groups do not notice. A version is published to all
// groups that are whole, in a round for each. Before its term with the trainers, a group that has
// missed a version has one with the workers of a group that shows it, which lend it.
class Coordinator final {
 public:
  // `decisions`: those of controllers before this one, oldest first. `actions` outlives the
  // coordinator, and runs no completion after its end.
  Coordinator(CoordinatorOptions options, const std::vector<Decision>& decisions,
              CoordinatorActions* actions);
  ~Coordinator();

  void OnMessage(ConnectionId connection, const proto::RankMessage& message, absl::Time now);
  // The stream has ended.
  void OnGone(ConnectionId connection, absl::Time now);
  // `status` says why where the decision is not durable.
  void OnRecorded(uint64_t ticket, Recorded recorded, const absl::Status& status, absl::Time now);
  void OnTime(absl::Time now);
  // Dismisses the workers of a group, and publishes without it even if it was required. Returns how
  // many there were. kNotFound: there is no such group.
  absl::StatusOr<uint32_t> RemoveGroup(const std::string& name, absl::Time now);
  // When OnTime() has something to do next; later than the time of the last call.
  absl::Time next_deadline() const;

  // Returns true if the stream belongs to a rank that has joined.
  bool IsAdmitted(ConnectionId connection) const;
  // Not OK once it is not known whether a decision was recorded: this controller decides nothing
  // any more, and has to be replaced by one that reads the log.
  const absl::Status& halted() const { return halted_; }
  proto::StatusReply Status(const proto::StatusRequest& request = {}) const;
  // Returns the workers of a group that are here, or of all groups if its name is empty.
  std::vector<std::pair<ConnectionId, RankId>> Workers(const std::string& group) const;
  // Returns the tensors that the trainers declare, each once, in a manifest that has nothing else.
  //
  // kUnavailable: not all trainers' manifests are here; which are not.
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

  // A group: its term, and its round.
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
    const World& workers;  // Those that are here.
    const GroupDecisions& decisions;

    // Returns true if its workers fetch versions: none is pushed to it.
    bool fetches() const { return !workers.here.empty() && workers.here.begin()->second->fetches; }
    // Returns true while the trainers bring it a version.
    bool updating() const { return round != nullptr && !catching_up; }

    Term term;
    absl::Time stop_deadline =
        absl::InfiniteFuture();  // While a round that is given up is relayed.
    absl::Status holes;          // What nobody holds while trainers are absent; OK if not known.
    uint64_t lent_version = 0;   // By the term's lender.
    absl::Time loan_patience = absl::InfinitePast();  // Publishes wait for the loan until then.
    CatchUpAttempts attempts;
    Tables tables;      // Those of the last plan in which the trainers sent all.
    bool here = false;  // Versions go to it, or will when all its workers are back.
    // The least version that the group shows when the fetch for which its workers wait is answered;
    // 0 if it is not known yet.
    uint64_t wanted_version = 0;
    uint64_t lost_version = 0;  // The last one that was published and given up since a commit.
    absl::Status lost_status;   // Why it was given up.

    uint32_t sequence = 0;
    std::unique_ptr<UpdateRound> round;
    bool tells_later = false;         // TellUndecided() waits for a worker to show a version.
    bool catching_up = false;         // The round brings a version that was published before.
    std::optional<uint64_t> to_lend;  // The last result of VersionToLend(); null if it may differ.
    std::optional<Rest> rest;         // Until the round that brings it has begun.
  };

  // Another process that claims a rank which is here.
  struct Claim {
    ConnectionId incumbent;
    absl::Time deadline;
    std::vector<proto::RankMessage> messages;  // Handled once it is admitted.
  };
  // A group that is not here, and has not left. It may be on its way back.
  struct Lost {
    absl::Time until;  // From then on nobody expects it any more.
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
  void SettleClaims(ConnectionId incumbent, const absl::Status& refusal, absl::Time now);
  void OnManifest(Member& member, const std::string& head, absl::Time now);
  // Goes on with the manifests that are not there yet.
  void GatherManifests(absl::Time now);
  void Remove(ConnectionId connection, const absl::Status& why, absl::Time now);
  static void OnReport(Member& member, const proto::RankReport& report);
  // Ends the terms in which the rank is, or has to be.
  void OnMembersChanged(const RankId& id);
  void TellOfGroup(const Member& member, const Group& group);
  void TellOfAllGroups(Member& member);
  void SendOldestShown(const Member& member);
  void TellOldestShown();  // If it has changed.
  // Tells every other member, if it is a change.
  void SetHere(Group& group, bool here);
  // These mark the group as changed, because whoever looks a group up may change it. Advance() does
  // for it then what has become possible.
  Group& GroupNamed(const std::string& name);
  // Returns null if nothing goes on in a group of that name.
  Group* FindGroup(const std::string& name);
  const Group* LookAt(const std::string& name) const;
  void MarkChanged(const Group& group) { changed_.insert(group.number); }
  void MarkAllChanged();
  // Brings up to date what the group contributes to `standings_`.
  void Settle(Group& group);
  Standing StandingOf(Group& group);
  void ForgetGroup(Group& group, absl::Time now);
  // Forgets what nobody will ask for.
  void ForgetPast(absl::Time now);
  // Nobody waits for the group any more, if nobody of it is here.
  void ForgetLost(const std::string& group);
  // Returns true if a worker of the lost group is here.
  bool IsBack(const Lost& lost) const;
  bool IsRequired(const Group& group) const { return required_groups_.contains(group.name); }
  // Returns true if a worker of the group is here, or no version is published without it.
  bool IsExpected(const Group& group) const { return group.workers.size > 0 || IsRequired(group); }
  // Returns true if somebody of the group is here or expected, or its round is not over.
  bool GoesOn(const Group& group) const { return IsExpected(group) || group.round != nullptr; }
  // Every trainer of the job, here or not.
  std::set<uint32_t> AllTrainers() const;
  bool any_trainer_absent() const {
    return members_.trainers().here.size() < members_.trainers().size;
  }
  // Returns true if another process claims a trainer's place, so that who the trainers are is about
  // to be settled.
  bool IsTrainerClaimed() const;
  // Returns the groups in whose terms a rank is.
  std::vector<Group*> GroupsOf(const RankId& id);
  // Returns the members of the group's term that are here: its workers, and those who send to them.
  std::vector<Member*> MembersOf(const Group& group);
  // Does everything that has become possible, in the groups that have changed or whose time has
  // come.
  void Advance(absl::Time now);
  void AdvanceGroups(absl::Time now);

  // --- terms (coordinator_terms.cc) ---

  // Returns the group in whose term the member has that end, or null if there is none.
  Group* FindTerm(const TermEnd& end, uint64_t epoch);
  // Returns when a term can begin in which the trainers send; InfiniteFuture while that takes ranks
  // that are not here.
  absl::Time TermTime(const Group& group) const;
  void TryBeginTerm(Group& group, absl::Time now);
  // Returns a plan with its tables. Those that are also in `earlier` are taken from there.
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
  // Ends the streams of ranks that have not done in time what their groups wait for.
  void HangUpWhoIsLate(absl::Time now);
  // Returns true if no version goes to the group without ranks that are missing.
  bool IsMissingRanks(const Group& group) const {
    return TermTime(group) == absl::InfiniteFuture();
  }
  // Names these ranks; empty if there are none.
  std::string DescribeMissing(const Group& group) const;
  std::string DescribeWaiting(const Group& group) const;
  // Returns the newest version that the group has decided and that all of its workers here show, or
  // are about to; 0 if there is none.
  uint64_t CommittedBy(const Group& group) const;
  // As StatusReply has it.
  absl::Duration SwitchSpread() const;
  // Adds what each sender brings to a worker.
  void AddTraffic(const RankId& worker, proto::RankStatus& rank) const;

  // --- rounds that go on without a lane (coordinator_rest.cc) ---

  using Manifests = std::vector<std::shared_ptr<const Manifest>>;
  // Returns the manifests of the trainers, or of a group's workers, by rank. A rank that is absent,
  // or not among `holders` if these are given, has one without shards.
  static Manifests ManifestsOf(const World& world, const std::set<uint32_t>* holders = nullptr);
  void CheckRest(Group& group, uint32_t sender);
  void BeginRestTerm(Group& group);
  void ContinueRound(Group& group, absl::Time now);

  // --- catching up (coordinator_loans.cc) ---

  // Returns the version that every worker of the group shows by one of the group's decisions.
  // Returns 0 if they do not show one version, if a worker is not here, or if updates write
  // directly to the memory that a worker shows.
  static uint64_t VersionToLend(Group& group);
  // Returns the newest version that a worker has, shown or about to be. 0 for one that no group of
  // this job has committed.
  uint64_t NewestVersion(const Member& worker) const;
  // Returns the newest version that a group can catch up on: the newest that any group has
  // committed, or a later one that every trainer holds and that is not being published any more.
  uint64_t NewestToGet() const;
  void NoteHeld();
  // Returns true if the group fetches, and all of its workers wait for a version.
  static bool AwaitsFetch(const Group& group);
  // Answers the workers of a group that show what was the newest when the last of them asked, also
  // if it was still on its way then.
  void AnswerFetches(Group& group);
  // Returns the oldest version that a worker of the group has, if the group has missed one and is
  // to catch up; else the newest version there can be.
  uint64_t OldestToReplace(const Group& group) const;
  std::string FindLender(const Group& group);
  // Returns true if every trainer holds the newest version, and the group has missed it.
  bool IsHeldFor(const Group& group) const;
  void TryCatchUp(Group& group, absl::Time now);
  void GiveUpLoan(Group& group, const absl::Status& why);
  void EndLoan(Group& group);
  // Ends whatever the group catches up on, unless it may be recorded.
  void EndCatchingUp(Group& group, const absl::Status& why, absl::Time now);
  void BeginCatchingUp(Group& group, uint64_t version, absl::Time now);

  // --- decisions and updates (coordinator_updates.cc) ---

  static bool ShowsOrKnows(const Group& group, uint64_t version);
  void NoteUnusable(Member& member, const proto::Failed& failed);
  static absl::Status WhyUnusable(const Group& group, uint64_t version);
  void ResolveDoubt(Member& member, bool everybody_is_here);
  void ResolveDoubts(const Group& group, bool everybody_is_here);
  static bool IsAboutToShow(const Group& group, uint64_t version);
  void TellUndecided(Group& group, Member& trainer);
  void TellUndecidedLater(Group& group);
  void NoteGivenUp(uint64_t version, uint32_t trainer);

  absl::Status CheckPublish(const Member& member, const proto::Publish& publish) const;
  absl::Status NotLater(uint64_t version) const;
  void OnPublish(const Member& member, const proto::Publish& publish, absl::Time now);
  void OnWithdraw(const Member& member, const proto::Withdraw& withdraw);
  void OnDecide(const Member& member, const proto::Decide& decide);
  // Returns true if the version waits for trainers, though no group does.
  bool AwaitsTrainers(const Publication& publication, absl::Time now) const;
  // No group shows the version that has not decided to.
  void GiveUpParts(Publication& publication, const absl::Status& why);
  void SendArrived(uint32_t trainer, uint64_t attempt, const Group& group);
  void RefusePublish(uint32_t trainer, uint64_t version, uint64_t attempt,
                     const absl::Status& status);
  void SendOutcome(uint32_t trainer, uint64_t attempt, uint64_t version, const std::string& group,
                   const Part& part);
  absl::Status CompareReplicas(uint32_t trainer, const Publication& publication) const;
  // Gives up a version that is not opened, or what of it is not decided.
  void RefuseToAll(Publication& publication, const absl::Status& why);
  // A version is given up. The trainers that do not publish it have yet to be told.
  void GiveUp(const Publication& publication, const absl::Status& why);
  void TakePart(uint32_t trainer, const Publication& publication);
  void GiveUpOvertaken(Publication& earlier, uint32_t trainer, uint64_t later);
  void GiveUpIfOvertaken(uint64_t version);
  // Ends a version in one group, and tells every trainer that publishes it.
  void EndPart(Publication& publication, const std::string& group, const Part& part);
  void GiveUpPart(Publication& publication, const std::string& group, const absl::Status& status);
  void GiveUpQueuedParts(Publication& publication, const absl::Status& status);
  bool IsSettling(const Group& group) const;
  // Returns true if the group catches up on what another lends, and all its workers are here.
  bool Borrows(const Group& group) const { return group.term.lent() && !IsMissingRanks(group); }
  absl::Time OpeningTime(const Publication& publication) const;
  void Open(Publication& publication);
  void AdvancePart(Publication& publication, Group& group, absl::Time now);
  void AdvancePublications(absl::Time now);
  void FinishPublication(const Publication& publication);
  void ForgetTrainer(uint32_t trainer, const absl::Status& why);
  // Returns until when a publish of that time, if it is not opened, waits for missing ranks.
  absl::Time AbsenceDeadline(absl::Time received) const;
  // Returns true if the absence of ranks keeps every publish from being opened.
  bool IsAnybodyAbsent() const;
  // Names these ranks; empty if there are none.
  std::string DescribeAbsence() const;
  void EndLatePublishes(absl::Time now);
  void RefuseLatePublishes(Publication& publication, absl::Time now);
  // Returns when a publish that waits has to be opened or refused.
  absl::Time PublishDeadline() const;
  void OnRoundMessage(Member& member, const proto::RankMessage& message, absl::Time now);
  void TellRenewal(const Group& group, const Member& member, const proto::Ready& ready);
  UpdateId NextUpdate(Group& group, uint64_t version);
  // Returns those who take part in a round that brings a version to the workers that do not have
  // it.
  RoundMembers MembersOfRound(const Group& group, uint64_t version);
  void BeginRound(Group& group, Publication& publication, absl::Time now);
  void FinishRoundIfOver(Group& group, absl::Time now);
  void OnOutcome(Group& group, bool committed, const absl::Status& status);
  void RecordDecision(Group& group);

  const CoordinatorOptions options_;
  CoordinatorActions* const actions_;
  std::set<std::string> required_groups_;
  Membership members_;
  std::map<ConnectionId, Claim> claims_;
  ManifestParts parts_;
  absl::Status halted_;

  Decisions decisions_;                  // The Groups refer to it.
  std::deque<Lost> lost_;                // By Lost::until; some are back.
  std::map<std::string, Group> groups_;  // Those in which something goes on.
  Standings standings_;                  // The sums over these groups, since the last Advance().
  GroupNumber last_group_number_ = 0;
  std::unordered_map<GroupNumber, Group*> numbered_;  // The same groups.
  Standings::Groups changed_;                         // Groups that Advance() has to see to.
  Standings::Groups advanced_;        // Those whose queued parts it has still to see to.
  std::map<uint64_t, Group*> terms_;  // By epoch.
  // When members that were joining when they were admitted have to be established.
  std::set<std::pair<absl::Time, ConnectionId>> join_deadlines_;
  uint64_t last_plan_ticket_ = 0;
  uint64_t last_epoch_;

  Publications publications_;
  uint64_t held_version_ = 0;        // The version that every trainer holds; 0: none.
  proto::OldestShown oldest_shown_;  // As trainers were told last.
  absl::Time incomplete_since_ =
      absl::InfinitePast();  // When a part of a whole term was last lost.
  // From when on terms begin without the trainers that are absent.
  absl::Time trainers_settled_at_ = absl::InfiniteFuture();
  uint64_t record_ticket_ = 0;
  std::map<uint64_t, Decision> recordings_;
  uint64_t updates_committed_ = 0;
  uint64_t updates_aborted_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_COORDINATOR_H_
