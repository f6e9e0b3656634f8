// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/plain_text.h"
#include "core/plan/planner.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

constexpr size_t kMostGroupBytes = 256;
constexpr uint32_t kMostNamed = 16;  // The most missing ranks of a role that are named.

// Restricts a group's name, which appears in logs, errors and on disk.
bool IsGroupName(absl::string_view name) {
  return !name.empty() && name.size() <= kMostGroupBytes && IsPlainText(name);
}

}  // namespace

RankId IdOf(const proto::Join& join) {
  const Role role = static_cast<Role>(join.role());
  return {role, join.rank(), role == Role::kWorker ? join.group() : std::string()};
}

uint32_t Membership::SizeOf(absl::string_view group) const {
  const auto world = worlds_.find(group);
  return world == worlds_.end() ? 0 : world->second.size;
}

absl::Status Membership::Check(const proto::Join& join) const {
  if (join.protocol_version() != kProtocolVersion) {
    return absl::InvalidArgumentError(absl::StrCat("join: protocol version ",
                                                   join.protocol_version(),
                                                   ", the controller speaks ", kProtocolVersion));
  }
  if (join.role() != static_cast<uint32_t>(Role::kTrainer) &&
      join.role() != static_cast<uint32_t>(Role::kWorker)) {
    return absl::InvalidArgumentError(absl::StrCat("join: role ", join.role()));
  }
  const RankId id = IdOf(join);
  if (join.job() != job_) {
    return absl::InvalidArgumentError(absl::StrCat("join: ", ToString(id), " belongs to job \"",
                                                   join.job(), "\", the controller to \"", job_,
                                                   "\""));
  }
  if (join.world() == 0 || join.world() > kMostRanks || join.rank() >= join.world()) {
    return absl::InvalidArgumentError(absl::StrCat("join: ", ToString(id), " of ", join.world(),
                                                   "; ranks are below the world's size, at most ",
                                                   kMostRanks));
  }
  if (id.role == Role::kWorker) {
    if (!IsGroupName(join.group())) {
      return absl::InvalidArgumentError(absl::StrCat("join: worker ", id.rank,
                                                     ": a group's name has 1 to ", kMostGroupBytes,
                                                     " bytes and no control characters"));
    }
    if (join.mode() < static_cast<uint32_t>(Mode::kShadow) ||
        join.mode() > static_cast<uint32_t>(Mode::kInPlace)) {
      return absl::InvalidArgumentError(
          absl::StrCat("join: ", ToString(id), ": mode ", join.mode()));
    }
  }
  if (id.role == Role::kTrainer && join.has_doubt()) {
    return absl::InvalidArgumentError(absl::StrCat("join: ", ToString(id), " cannot be in doubt"));
  }
  const uint32_t world = SizeOf(id.group);
  if (world != 0 && world != join.world()) {
    return absl::FailedPreconditionError(
        absl::StrCat("join: ", ToString(id), " says there are ", join.world(), " ", Name(id.role),
                     "s, the ", id.role == Role::kTrainer ? "job" : "group", " has ", world));
  }
  const auto group = worlds_.find(id.group);
  if (id.role == Role::kWorker && world != 0 &&
      group->second.here.begin()->second->fetches != join.fetches()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "join: ", ToString(id), " gets versions ", join.fetches() ? "when asked" : "as published",
        ", unlike other workers of its group"));
  }
  return absl::OkStatus();
}

uint32_t Membership::FreeRank(const proto::Join& join) const {
  RankId id = IdOf(join);
  for (id.rank = 0; id.rank < join.world() && members_.contains(id);) ++id.rank;
  return id.rank;
}

Member* Membership::Admit(ConnectionId connection, const proto::Join& join) {
  const RankId id = IdOf(join);
  Member& member = members_[id];
  World& world = worlds_[id.group];
  world.size = join.world();
  world.here[id.rank] = &member;
  by_connection_[connection] = &member;
  member.id = id;
  member.connection = connection;
  member.incarnation = join.incarnation();
  member.established = join.returning();
  if (id.role == Role::kWorker) {
    member.mode = static_cast<Mode>(join.mode());
    member.catch_up = join.catch_up();
    member.fetches = join.fetches();
    if (member.fetches) member.SetFetch(join.fetch(), join.fetch_at_least());
    member.shown_version = join.shown_version();
    member.shown_round = join.shown_round();
    member.shown_composition = join.shown_composition();
    member.committed_version = std::max(join.committed_version(), join.shown_version());
    if (join.has_doubt()) member.doubt = join.doubt();
    if (join.has_unusable()) member.unusable = join.unusable();
    CountShown(world, member.shown_version, 1);
  } else {
    member.undecided_versions = {join.undecided_versions().begin(),
                                 join.undecided_versions().end()};
    member.held = join.held();
  }
  return &member;
}

void Membership::SetManifest(Member& member, std::shared_ptr<const Manifest> manifest) {
  if (member.manifest == nullptr) ++worlds_[member.id.group].with_manifests;
  member.manifest = std::move(manifest);
}

void Membership::SetShown(Member& worker, const proto::Shown& shown) {
  World& world = worlds_[worker.id.group];
  CountShown(world, worker.shown_version, -1);
  CountShown(world, shown.version(), 1);
  worker.shown_version = shown.version();
  worker.shown_round = shown.round();
  worker.shown_composition = shown.composition();
}

void Membership::CountShown(World& world, uint64_t version, int more) {
  size_t& count = world.shown[version];
  count += static_cast<size_t>(more);
  if (count == 0) world.shown.erase(version);
}

void Membership::Remove(ConnectionId connection) {
  const Member* member = Find(connection);
  if (member == nullptr) return;
  const RankId id = member->id;
  World& world = worlds_[id.group];
  world.here.erase(id.rank);
  if (member->manifest != nullptr) --world.with_manifests;
  if (id.role == Role::kWorker) CountShown(world, member->shown_version, -1);
  if (world.here.empty()) world.size = 0;  // What nobody here declares any more binds nobody.
  by_connection_.erase(connection);
  members_.erase(id);
}

void Membership::Clear() {
  for (auto& [group, world] : worlds_) world = World();
  by_connection_.clear();
  members_.clear();
}

Member* Membership::Find(ConnectionId connection) {
  const auto member = by_connection_.find(connection);
  return member == by_connection_.end() ? nullptr : member->second;
}

Member* Membership::Find(const RankId& id) {
  const auto member = members_.find(id);
  return member == members_.end() ? nullptr : &member->second;
}

std::string Membership::DescribeMissing(absl::string_view group) const {
  std::string missing = DescribeMissingTrainers();
  AddMissing(Role::kWorker, group, missing);
  return missing;
}

std::string Membership::DescribeMissingTrainers() const {
  std::string missing;
  AddMissing(Role::kTrainer, "", missing);
  return missing;
}

void Membership::AddMissing(Role role, absl::string_view group, std::string& missing) const {
  const auto add = [&](const auto&... what) {
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", what...);
  };
  const uint32_t world = SizeOf(group);
  if (world == 0) {
    const bool named = !group.empty() && group != kDefaultGroup;
    add("every ", Name(role), named ? " of group " : "", named ? group : "");
  }
  if (world == 0) return;
  const World& of = worlds_.find(group)->second;
  size_t left = world - of.with_manifests;
  for (uint32_t rank = 0, named = 0; left > 0; ++rank) {
    const RankId id{role, rank, std::string(group)};
    const auto member = members_.find(id);
    const bool here = member != members_.end();
    if (here && member->second.manifest != nullptr) continue;
    if (named++ == kMostNamed) return add(left, " more");
    --left;
    here ? add(ToString(id), " (its manifest)") : add(ToString(id));
  }
}

std::vector<LanePath> Membership::MakeLanes(const RankId& sender, const RankId& worker) const {
  return PlanLanes(*members_.at(sender).manifest, *members_.at(worker).manifest);
}

}  // namespace waybill
