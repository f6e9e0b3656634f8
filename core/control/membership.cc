#include "core/control/membership.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/control/messages.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest_check.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

constexpr uint32_t kMostRanks = 1 << 16;

size_t IndexOf(Role role) { return role == Role::kTrainer ? 0 : 1; }

}  // namespace

Membership::Membership(std::string job, std::string token, uint32_t trainers, uint32_t workers)
    : job_(std::move(job)), token_(std::move(token)), worlds_{trainers, workers} {}

bool Membership::TokenIsRight(absl::string_view token) const {
  // The time it takes says nothing about where they differ.
  unsigned different = token.size() == token_.size() ? 0 : 1;
  for (size_t i = 0; i < token.size(); ++i) {
    different |= static_cast<unsigned char>(token[i]) ^
                 static_cast<unsigned char>(token_.empty() ? 0 : token_[i % token_.size()]);
  }
  return different == 0;
}

absl::StatusOr<Member*> Membership::Join(ConnectionId connection, const proto::Join& join) {
  const RankId id{static_cast<Role>(join.role()), join.rank()};
  if (!TokenIsRight(join.token())) {
    return absl::UnauthenticatedError(
        absl::StrCat("join: the token is not that of job \"", job_, "\""));
  }
  if (join.protocol_version() != kProtocolVersion) {
    return absl::InvalidArgumentError(absl::StrCat("join: protocol version ",
                                                   join.protocol_version(),
                                                   ", the controller speaks ", kProtocolVersion));
  }
  if (id.role != Role::kTrainer && id.role != Role::kWorker) {
    return absl::InvalidArgumentError(absl::StrCat("join: role ", join.role()));
  }
  if (join.job() != job_) {
    return absl::InvalidArgumentError(absl::StrCat("join: ", ToString(id), " is of job \"",
                                                   join.job(), "\", the controller of \"", job_,
                                                   "\""));
  }
  if (join.world() == 0 || join.world() > kMostRanks || join.rank() >= join.world()) {
    return absl::InvalidArgumentError(absl::StrCat("join: ", ToString(id), " of ", join.world(),
                                                   "; ranks are below the world's size, at most ",
                                                   kMostRanks));
  }
  uint32_t& world = worlds_[IndexOf(id.role)];
  if (world != 0 && world != join.world()) {
    return absl::FailedPreconditionError(absl::StrCat("join: ", ToString(id), " says there are ",
                                                      join.world(), " ", Name(id.role),
                                                      "s, the job has ", world));
  }
  if (members_.contains(id)) {
    return absl::AlreadyExistsError(
        absl::StrCat("join: ", ToString(id), " of job \"", job_, "\" is here already"));
  }
  world = join.world();
  Member& member = members_[id];
  member.id = id;
  member.connection = connection;
  member.group = join.group();
  member.mode = static_cast<Mode>(join.mode());
  member.shown_version = join.shown_version();
  return &member;
}

absl::Status Membership::AddManifestPart(Member& member, const proto::Part& part) {
  member.manifest_bytes.append(part.data());
  if (!part.last()) return absl::OkStatus();
  const std::string what = absl::StrCat("join: ", ToString(member.id));
  absl::StatusOr<Manifest> manifest = DecodeManifest(member.manifest_bytes);
  if (!manifest.ok()) return While(what, manifest.status());
  WAYBILL_RETURN_IF_ERROR(
      While(what, CheckManifest(*manifest, member.id.role == Role::kWorker ? Holes::kRefused
                                                                           : Holes::kAllowed)));
  WAYBILL_RETURN_IF_ERROR(While(what, CheckOrder(*manifest)));
  member.manifest_bytes = {};
  member.manifest = *std::move(manifest);
  return absl::OkStatus();
}

void Membership::Remove(ConnectionId connection) {
  std::erase_if(members_, [&](const auto& m) { return m.second.connection == connection; });
}

Member* Membership::Find(ConnectionId connection) {
  for (auto& [id, member] : members_) {
    if (member.connection == connection) return &member;
  }
  return nullptr;
}

Member* Membership::Find(RankId id) {
  const auto member = members_.find(id);
  return member == members_.end() ? nullptr : &member->second;
}

bool Membership::complete() const { return DescribeMissing().empty(); }

std::string Membership::DescribeMissing() const {
  std::string missing;
  const auto add = [&](auto... what) {
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", what...);
  };
  for (const Role role : {Role::kTrainer, Role::kWorker}) {
    const uint32_t world = worlds_[IndexOf(role)];
    if (world == 0) add("every ", Name(role));
    for (uint32_t rank = 0; rank < world; ++rank) {
      const auto member = members_.find({role, rank});
      if (member == members_.end()) {
        add(Name(role), " ", rank);
      } else if (!member->second.manifest) {
        add(Name(role), " ", rank, " (its manifest)");
      }
    }
  }
  return missing;
}

std::vector<LanePath> Membership::MakeLanes(uint32_t trainer, uint32_t worker) const {
  return PlanLanes(*members_.at({Role::kTrainer, trainer}).manifest,
                   *members_.at({Role::kWorker, worker}).manifest);
}

absl::StatusOr<Plan> Membership::MakePlan() {
  std::vector<const Manifest*> trainers, workers;
  for (const auto& [id, member] : members_) {
    (id.role == Role::kTrainer ? trainers : workers).push_back(&*member.manifest);
  }
  return waybill::MakePlan(trainers, workers);
}

}  // namespace waybill
