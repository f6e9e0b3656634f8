// Catching up: how a group that has missed a version gets it from another that shows it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/coordinator.h"

namespace waybill {
namespace {

// How often a group is asked to lend. It may show another version by the time it hears of it.
constexpr int kMostLoansTried = 3;

}  // namespace

uint64_t Coordinator::ShownByAll(const std::string& group) const {
  if (!members_.has_all_workers(group)) return 0;
  const std::vector<const Member*> workers = members_.WorkersOf(group);
  const uint64_t version = workers.front()->shown_version;
  const bool same = std::all_of(workers.begin(), workers.end(),
                                [&](const Member* w) { return w->shown_version == version; });
  return same ? version : 0;
}

// Returns the group that shows the newest version, if that is newer than what some worker of
// `group` has; else an empty text.
std::string Coordinator::FindLender(const Group& group) const {
  if (!members_.has_all_workers(group.name)) return "";
  uint64_t oldest = ~uint64_t{0};
  for (const Member* worker : members_.WorkersOf(group.name)) {
    if (!worker->catch_up) return "";
    oldest = std::min(oldest, worker->newest_version());
  }
  if (oldest >= committed_version_) return "";
  for (const auto& [version, publication] : publications_) {
    const auto part = publication.parts.find(group.name);
    // The trainers are about to bring it.
    if (part != publication.parts.end() && part->second.state == Part::State::kQueued) return "";
  }
  std::string lender;
  for (const auto& [name, other] : groups_) {
    const auto tried = group.loans_tried.find(name);
    if (tried != group.loans_tried.end() && tried->second >= kMostLoansTried) continue;
    const uint64_t shown = ShownByAll(name);
    if (shown <= oldest) continue;
    const std::vector<const Member*> workers = members_.WorkersOf(name);
    // Memory that is written directly is written over by the next update.
    if (std::any_of(workers.begin(), workers.end(),
                    [](const Member* worker) { return worker->mode == Mode::kInPlace; })) {
      continue;
    }
    oldest = shown;
    lender = name;
  }
  return lender;
}

// A group that is whole has missed a version if its round failed, and not that of another.
void Coordinator::TryCatchUp(Group& group) {
  if (group.phase != Phase::kReady || group.round != nullptr) return;
  if (!FindLender(group).empty()) BeginGathering(group);
}

// Another group may lend it, or the next update brings it.
void Coordinator::GiveUpLoan(Group& group, const absl::Status& why) {
  group.last_loan_trouble = While(absl::StrCat("catch up from group ", group.lender), why);
  group.loans_tried[group.lender] = kMostLoansTried;
  BeginGathering(group);
}

// Tells the lender that it need not keep what it lent.
void Coordinator::EndLoan(Group& group) {
  if (group.lender.empty()) return;
  proto::ControllerMessage message;
  message.mutable_term_over()->set_group(group.name);
  for (auto& [id, member] : members_.members()) {
    if (!group.IsSender(id)) continue;
    member.lanes.erase(group.name);
    actions_->Send(member.connection, message);
  }
  group.lender.clear();
  group.lent_version = 0;
}

void Coordinator::BeginCatchingUp(Group& group, absl::Time now) {
  const absl::Time deadline = now + options_.absence_timeout;  // To be READY.
  group.round = std::make_unique<UpdateRound>(NextUpdate(group, group.lent_version),
                                              MembersOfRound(group, group.lent_version),
                                              /*digests_off=*/false, deadline, &group.plan, &group);
  group.round->Begin(now);
  for (uint32_t s = 0; s < group.plan.trainers.size(); ++s) {
    group.round->OnPublish(s, /*attempt=*/0, deadline);
  }
}

}  // namespace waybill
