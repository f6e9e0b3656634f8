// What a coordinator reports about itself, for people.

#include "absl/strings/str_cat.h"
#include "core/protocol/coordinator.h"

namespace waybill {

std::string Coordinator::DescribeWaiting() const {
  if (!halted_.ok()) return std::string(halted_.message());
  if (phase_ == Phase::kReady) return round_ != nullptr ? round_->DescribeWaiting() : "";
  if (phase_ == Phase::kPlanning) return "the plan";
  if (phase_ == Phase::kGathering) {
    std::string missing = members_.DescribeMissing();
    if (!missing.empty() || last_lane_trouble_.ok()) return missing;
    return absl::StrCat("lanes that can be made again: ", last_lane_trouble_.message());
  }
  std::string text;
  for (const auto& [id, member] : members_.members()) {
    const bool waiting =
        phase_ == Phase::kOffering ? !member.offers.has_value() : !member.connected;
    if (waiting) absl::StrAppend(&text, text.empty() ? "" : ", ", ToString(id), " (its lanes)");
  }
  return text;
}

proto::StatusReply Coordinator::Status() const {
  constexpr const char* kPhases[] = {"gathering", "planning", "planned", "connecting", "ready"};
  proto::StatusReply reply;
  reply.set_job(options_.job);
  reply.set_phase(!halted_.ok()       ? "halted"
                  : round_ != nullptr ? "updating"
                                      : kPhases[static_cast<int>(phase_)]);
  reply.set_epoch(EpochNumber());
  reply.set_plan_hash(plan_.hash);
  reply.set_committed_version(committed_version_);
  if (round_ != nullptr) reply.set_updating_version(round_->update().version);
  reply.set_updates_committed(updates_committed_);
  reply.set_updates_aborted(updates_aborted_);
  reply.set_lanes_lost(lanes_lost_);
  reply.set_waiting_for(DescribeWaiting());
  for (const auto& [id, member] : members_.members()) {
    proto::RankStatus* rank = reply.add_ranks();
    rank->set_name(ToString(id));
    rank->set_group(member.group);
    rank->set_state(member.manifest == nullptr ? "joining"
                    : member.connected         ? "connected"
                    : member.doubt             ? "in doubt"
                                               : "joined");
    const auto& bytes = id.role == Role::kTrainer ? plan_.trainer_bytes : plan_.worker_bytes;
    if (id.rank < bytes.size()) rank->set_planned_bytes(bytes[id.rank]);
    rank->set_shown_version(member.shown_version);
    *rank->mutable_report() = member.report;
    *rank->mutable_lanes() = member.lanes;
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
