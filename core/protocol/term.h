// SPDX-License-Identifier: Apache-2.0

// A group's term: who sends and who receives, by which plan, and over which lanes. Pure; not
// thread-safe.
#ifndef WAYBILL_CORE_PROTOCOL_TERM_H_
#define WAYBILL_CORE_PROTOCOL_TERM_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/plan/lanes.h"
#include "core/plan/plan.h"
#include "core/plan/rest.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

// A member as one that sends, or as one that receives. A worker that relays is both.
struct TermEnd {
  RankId id;
  bool relays = false;

  auto operator<=>(const TermEnd&) const = default;
};

// A group has one term after the other. Each goes from the members' manifests to a plan, to offers
// of lanes, to lanes that carry; it ends when a member changes or a lane dies.
class Term {
 public:
  // In kForOneRound, the plan serves the round at hand only: what a group catches up on, or the
  // rest of a version.
  enum class Phase { kGathering, kPlanning, kOffering, kConnecting, kForOneRound, kReady };
  // Returns the lanes between a sender and a receiver.
  using MakeLanes = std::function<std::vector<LanePath>(const RankId&, const RankId&)>;
  using Messages = std::vector<std::pair<RankId, proto::ControllerMessage>>;

  explicit Term(std::string group) : group_(std::move(group)) {}

  Phase phase() const { return phase_; }
  uint64_t epoch() const { return epoch_; }  // 0 before the first term.
  const Plan& plan() const { return plan_; }
  // By their numbers in the plan.
  const std::vector<RankId>& senders() const { return senders_; }
  // The ends whose ranks have not gone since the term was planned. A rank is heard as one of the
  // term only while its end is among them.
  const std::set<TermEnd>& ends() const { return ends_; }
  // The group whose workers send; empty: the trainers do.
  const std::string& lender() const { return lender_; }
  bool lent() const { return !lender_.empty(); }
  bool IsSender(const RankId& id) const {
    return lent() ? id.role == Role::kWorker && id.group == lender_ : id.role == Role::kTrainer;
  }
  bool IsSender(const TermEnd& end) const { return end.relays || IsSender(end.id); }
  bool IsMember(const RankId& id) const {
    return IsSender(id) || (id.role == Role::kWorker && id.group == group_);
  }
  // Returns the end's number in the plan, by which the other side knows it.
  uint32_t NumberOf(const TermEnd& end) const {
    return end.relays ? plan_.relay(end.id.rank) : end.id.rank;
  }
  bool IsConnected(const RankId& id) const { return connected_.contains({id}); }

  // Drops what was planned. Does not change the plan by which a round is going on.
  void Gather();
  // `ticket` names the plan that is being made.
  void BeginPlanning(uint64_t ticket, std::string lender);
  bool AwaitsPlan(uint64_t ticket) const { return plan_ticket_ == ticket; }
  // The plan is there, and `members` have to make lanes until the deadline.
  void Begin(Plan plan, uint64_t epoch, const std::vector<RankId>& members,
             absl::Time lanes_deadline);
  // Returns the plan as one end is told it, with its compressed table.
  proto::Plan PlanFor(const TermEnd& end, const std::string& table,
                      const MakeLanes& make_lanes) const;
  // Each member has offered its ends of the lanes once this returns true.
  bool AddOffers(const TermEnd& end, const proto::Offers& offers);
  // Returns what the members are told of each other's ends.
  Messages Connect();
  // Every lane of the term is open once this returns true.
  bool AddConnected(const TermEnd& end);
  // The lanes carry.
  void Establish(Phase phase);
  // Returns the plan, which the term has no more.
  Plan TakePlan();
  // The senders of the group that lends are members no more.
  void EndLoan();
  void Remove(const RankId& id);

  // Returns the ends whose offers or lanes are waited for.
  std::vector<TermEnd> Awaited() const;
  // When these have to be there.
  absl::Time lanes_deadline() const { return lanes_deadline_; }

  // --- lanes that fail ---

  // Lanes could not be made. They are made again: the first time at once, then at growing
  // distances. Does nothing once the lanes carry.
  void OnConnectFailed(const RankId& id, const absl::Status& why, absl::Time now);
  // A lane died. If the lanes carried, ReplaceLanes() makes them again.
  void OnLaneLost(const TermEnd& end, uint32_t peer, bool co_owner, const absl::Status& why,
                  absl::Time now);
  void OnNicsChanged(const RankId& id);
  // Plans anew if lanes have died or NICs have changed.
  void ReplaceLanes(absl::Time now);
  // An update committed: whatever was wrong with the lanes is over.
  void OnCommitted() { troubles_ = 0; }
  // Lanes to a rank that is gone, or that begins anew, do not go on from term to term.
  void ForgetLanesOf(const RankId& id);
  // No term begins before.
  absl::Time retry_at() const { return retry_at_; }
  bool had_trouble() const { return troubles_ > 0; }
  const absl::Status& last_trouble() const { return last_trouble_; }
  // How many terms were established because lanes had died between ranks that lived, by the code of
  // the first death.
  const std::map<absl::StatusCode, uint64_t>& lanes_lost() const { return lanes_lost_; }

 private:
  void RetryLater(absl::Time now);

  const std::string group_;
  std::string lender_;
  Phase phase_ = Phase::kGathering;
  uint64_t epoch_ = 0;
  uint64_t plan_ticket_ = 0;
  Plan plan_;
  std::vector<RankId> senders_;
  std::set<TermEnd> ends_;
  std::map<TermEnd, proto::Offers> offers_;
  std::set<TermEnd> connected_;
  absl::Time lanes_deadline_ = absl::InfiniteFuture();
  // The lanes between trainers and workers that are open. They go on from term to term.
  std::set<RankPair> lanes_;

  absl::Time retry_at_ = absl::InfinitePast();
  uint32_t troubles_ = 0;  // Since an update committed.
  absl::Status last_trouble_;
  bool nics_changed_ = false;  // Since the plan was made.
  // Why the first lane between ranks that live has died since the last term was established; kOk:
  // none has.
  absl::StatusCode lane_lost_ = absl::StatusCode::kOk;
  std::map<absl::StatusCode, uint64_t> lanes_lost_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_TERM_H_
