// SPDX-License-Identifier: Apache-2.0

// The rest of a version: how a round goes on when lanes die, with what other trainers hold.
//
// The round waits until everything else has arrived. Then the group has a term whose plan is what
// is lacking, and another round of the same version, for which the workers keep what they have.

#include <utility>

#include "core/protocol/coordinator.h"

namespace waybill {
namespace {

absl::StatusOr<Plan> PlanRestOf(const Plan& plan, const std::set<RankPair>& lacking,
                                const std::vector<std::shared_ptr<const Manifest>>& trainers,
                                const std::vector<std::shared_ptr<const Manifest>>& workers) {
  std::vector<const Manifest*> from, to;
  for (const auto& manifest : trainers) from.push_back(manifest.get());
  for (const auto& manifest : workers) to.push_back(manifest.get());
  return PlanRest(plan, lacking, from, to);
}

}  // namespace

Coordinator::Manifests Coordinator::ManifestsOf(const World& world,
                                                const std::set<uint32_t>* holders) {
  Manifests manifests(world.size, std::make_shared<const Manifest>());
  for (const auto& [rank, member] : world.here) {
    if (member->manifest == nullptr || (holders != nullptr && !holders->contains(rank))) continue;
    manifests[rank] = member->manifest;
  }
  return manifests;
}

void Coordinator::Group::CheckRest(uint32_t sender) { coordinator.CheckRest(*this, sender); }

// A version that nobody can complete is given up at once, not when all else has arrived.
void Coordinator::CheckRest(Group& group, uint32_t sender) {
  std::set<RankPair> lacking;
  for (uint32_t w = 0; w < group.term.plan().receiver_count(); ++w) lacking.insert({sender, w});
  std::set<uint32_t> others = AllTrainers();
  others.erase(sender);
  actions_->Compute([this, name = group.name, update = group.round->update(), lacking,
                     plan = group.term.plan(), trainers = ManifestsOf(members_.trainers(), &others),
                     workers = ManifestsOf(group.workers)](const CoordinatorActions::ForEach&) {
    const absl::Status status = PlanRestOf(plan, lacking, trainers, workers).status();
    return [this, name, update, status](absl::Time now) {
      Group* const of = FindGroup(name);
      if (status.ok() || of == nullptr || of->round == nullptr) return;
      if (of->round->update() != update) return;
      of->round->OnRestUnavailable(status);
      Advance(now);
    };
  });
}

void Coordinator::Group::PlanRest(std::set<RankPair> lacking, std::set<uint32_t> holders) {
  rest = {round->update(), term.TakePlan(), std::move(lacking), std::move(holders)};
  term.Gather();
}

void Coordinator::BeginRestTerm(Group& group) {
  group.term.BeginPlanning(++last_plan_ticket_, /*lender=*/"");
  actions_->Compute(
      [this, name = group.name, ticket = last_plan_ticket_, rest = *group.rest,
       trainers = ManifestsOf(members_.trainers(), &group.rest->holders),
       workers = ManifestsOf(group.workers)](const CoordinatorActions::ForEach& for_each) {
        auto planned = std::make_shared<Planned>(
            EncodeTables(PlanRestOf(rest.plan, rest.lacking, trainers, workers), {}, for_each));
        return [this, name, ticket, planned](absl::Time now) {
          OnPlanned(name, ticket, std::move(*planned), now);
        };
      });
}

void Coordinator::ContinueRound(Group& group, absl::Time now) {
  const Rest rest = *std::exchange(group.rest, std::nullopt);
  const uint64_t version = rest.continued.version;
  const Publication& publication = *publications_.Find(version);
  RoundMembers members = MembersOfRound(group, version);
  for (uint32_t t = 0; t < members.senders.size(); ++t) {
    const RankId& trainer = members.senders[t];
    const auto publish = publication.publishes.find(t);
    const bool published = publish != publication.publishes.end() &&
                           group.round->HasPublished(trainer, publish->second.attempt);
    // Another one has let the version go, or its rank has been taken over by another process.
    const bool takes_part = published ? rest.holders.contains(t) : group.round->IsAwaited(trainer);
    if (!takes_part) members.absent.insert(t);
  }
  group.round = std::make_unique<UpdateRound>(
      NextUpdate(group, version, rest.continued.composition), std::move(members),
      publication.digests_off, publication.deadline, group.term.plan(), IfLanesDie::kAbort, &group);
  if (publication.waits_for_word()) group.round->HoldCommit();
  group.round->Begin(/*catch_up=*/false, &rest.continued, now);
  for (const auto& [trainer, publish] : publication.publishes) {
    group.round->OnPublish({Role::kTrainer, trainer}, publish.attempt, publish.deadline);
  }
}

}  // namespace waybill
