// SPDX-License-Identifier: Apache-2.0

// What a coordinator reports about itself, for people.

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/protocol/coordinator.h"

namespace waybill {

std::string Coordinator::DescribeMissing(const Group& group) const {
  if (!IsMissingRanks(group)) return "";
  const std::string missing = members_.DescribeMissing(group.name);
  return group.holes.ok() ? missing : absl::StrCat(missing, ": ", group.holes.message());
}

std::string Coordinator::DescribeWaiting(const Group& group) const {
  if (!halted_.ok()) return std::string(halted_.message());
  if (group.round != nullptr && group.round->aborted()) return group.round->DescribeWaiting();
  if (group.term.phase() == Phase::kReady || group.term.phase() == Phase::kForOneRound) {
    return group.round != nullptr ? group.round->DescribeWaiting() : "";
  }
  if (group.term.phase() == Phase::kPlanning) return "the plan";
  if (group.term.phase() == Phase::kGathering) {
    std::string missing = DescribeMissing(group);
    if (missing.empty()) missing = members_.DescribeMissing(group.name);  // Not for long.
    if (!missing.empty() || group.term.last_trouble().ok()) return missing;
    return absl::StrCat("lanes that can be made again: ", group.term.last_trouble().message());
  }
  std::string text;
  RankId last;
  for (const TermEnd& end : group.term.Awaited()) {
    if (!text.empty() && end.id == last) continue;
    last = end.id;
    absl::StrAppend(&text, text.empty() ? "" : ", ", ToString(last), " (its lanes)");
  }
  return text;
}

absl::StatusOr<Manifest> Coordinator::JobTensors() const {
  if (std::string missing = members_.DescribeMissingTrainers(); !missing.empty()) {
    return absl::UnavailableError(missing);
  }
  Manifest tensors;
  std::set<std::string, std::less<>> names;
  for (const auto& [id, member] : members_.members()) {
    if (id.role != Role::kTrainer) continue;
    const Manifest& held = *member.manifest;
    for (uint32_t t = 0; t < held.tensor_count(); ++t) {
      if (!names.emplace(held.tensor_name(t)).second) continue;
      tensors.AddTensor(held.tensor_name(t), held.tensor_shape(t), held.tensor_dtype(t));
    }
  }
  return tensors;
}

std::vector<std::pair<ConnectionId, RankId>> Coordinator::Workers(const std::string& group) const {
  std::vector<std::pair<ConnectionId, RankId>> workers;
  for (const auto& [id, member] : members_.members()) {
    if (id.role != Role::kWorker || (!group.empty() && id.group != group)) continue;
    workers.emplace_back(member.connection, id);
  }
  return workers;
}

void Coordinator::AddTraffic(const RankId& worker, proto::RankStatus& rank) const {
  const auto group = groups_.find(worker.group);
  if (group == groups_.end() || group->second.term.lent()) return;
  const Plan& plan = group->second.term.plan();
  if (worker.rank >= plan.receiver_count()) return;
  const std::vector<uint64_t> bytes = plan.bundles().BytesTo(worker.rank);
  const auto relayed = bytes.begin() + plan.holder_count();
  rank.mutable_from_trainers()->Add(bytes.begin(), relayed);
  rank.mutable_from_workers()->Add(relayed, bytes.end());
}

// Those who have taken the place of a group's workers show nothing of what these have decided.
uint64_t Coordinator::CommittedBy(const Group& group) const {
  uint64_t committed = 0;
  for (const Decision& decision : group.decisions.kept()) {
    const auto& workers = group.workers.here;
    const bool all =
        !workers.empty() && std::all_of(workers.begin(), workers.end(), [&](const auto& worker) {
          return NewestVersion(*worker.second) >= decision.version;
        });
    if (all) committed = std::max(committed, decision.version);
  }
  return committed;
}

absl::Duration Coordinator::SwitchSpread() const {
  absl::Time first = absl::InfiniteFuture(), last = absl::InfinitePast();
  for (const auto& [id, member] : members_.members()) {
    if (member.shown_version != decisions_.newest_version() ||
        member.shown_at == absl::InfinitePast()) {
      continue;
    }
    first = std::min(first, member.shown_at);
    last = std::max(last, member.shown_at);
  }
  return std::max(absl::ZeroDuration(), last - first);
}

proto::StatusReply Coordinator::Status(const proto::StatusRequest& request) const {
  constexpr const char* kPhases[] = {"gathering",  "planning",    "planned",
                                     "connecting", "catching up", "ready"};
  proto::StatusReply reply;
  reply.set_job(options_.job);
  reply.set_committed_version(decisions_.newest_version());
  reply.set_published_version(
      std::max(publications_.newest_version(), decisions_.newest_version()));
  reply.set_updates_committed(updates_committed_);
  reply.set_updates_aborted(updates_aborted_);
  reply.set_switch_spread_us(SwitchSpread() / absl::Microseconds(1));
  Phase least = Phase::kReady;
  bool any = false, updating = false;
  std::string waiting;
  for (const auto& [name, group] : groups_) {
    if (!IsExpected(group)) continue;
    any = true;
    least = std::min(least, group.term.phase());
    updating = updating || group.updating();
    proto::GroupStatus* out = reply.add_groups();
    out->set_name(name);
    out->set_phase(group.updating() ? "updating" : kPhases[static_cast<int>(group.term.phase())]);
    out->set_epoch(group.term.epoch() & ((uint64_t{1} << kEpochCountBits) - 1));
    out->set_plan_hash(group.term.plan().hash());
    for (const auto& [code, terms] : group.term.lanes_lost()) {
      proto::Counter* lost = out->add_lanes_lost();
      lost->set_name(absl::StatusCodeToString(code));
      lost->set_value(terms);
    }
    out->set_committed_version(CommittedBy(group));
    if (group.round != nullptr) out->set_updating_version(group.round->update().version);
    out->set_waiting_for(DescribeWaiting(group));
    out->set_catch_up_trouble(std::string(group.attempts.last_trouble().message()));
    out->set_lost_version(group.lost_version);
    out->set_lost_why(std::string(group.lost_status.message()));
    out->set_fetches(group.fetches());
    if (out->waiting_for().empty()) continue;
    absl::StrAppend(&waiting, waiting.empty() ? "" : "; ", out->waiting_for());
  }
  reply.set_phase(!halted_.ok() ? "halted"
                  : !any        ? "gathering"
                  : updating    ? "updating"
                                : kPhases[static_cast<int>(least)]);
  reply.set_waiting_for(!halted_.ok() ? std::string(halted_.message())
                        : !any        ? members_.DescribeMissing(kDefaultGroup)
                                      : waiting);
  for (const auto& [id, member] : members_.members()) {
    proto::RankStatus* rank = reply.add_ranks();
    rank->set_name(absl::StrCat(Name(id.role), " ", id.rank));
    rank->set_group(id.group);
    rank->set_shown_version(member.shown_version);
    rank->set_approximate(member.shown_composition != 0);
    *rank->mutable_report() = member.report;
    bool connected = false;
    uint64_t planned_bytes = 0;
    for (const auto& [name, group] : groups_) {
      if (!group.term.IsMember(id)) continue;
      connected = connected || group.term.IsConnected(id);
      const bool sender = group.term.IsSender(id);
      const Plan& plan = group.term.plan();
      if (id.rank >= (sender ? plan.sender_count() : plan.receiver_count())) continue;
      planned_bytes += sender ? plan.sender_bytes(id.rank) : plan.receiver_bytes(id.rank);
    }
    rank->set_planned_bytes(planned_bytes);
    if (request.traffic() && id.role == Role::kWorker) AddTraffic(id, *rank);
    rank->set_state(member.manifest == nullptr ? "joining"
                    : connected                ? "connected"
                    : member.doubt             ? "in doubt"
                                               : "joined");
    for (const auto& [of, connected_lanes] : member.lanes) {
      for (const proto::LaneReport& lane : connected_lanes.lanes()) {
        *rank->add_lanes() = lane;
        rank->mutable_lanes()->rbegin()->set_group(of.first);
      }
    }
    if (member.manifest == nullptr) continue;
    for (const Nic& nic : member.manifest->nics()) {
      proto::UsableNic* out = rank->add_nics();
      out->set_name(nic.name);
      out->set_bytes_per_second(nic.bytes_per_second);
    }
  }
  return reply;
}

}  // namespace waybill
