// SPDX-License-Identifier: Apache-2.0

// The ranks that have joined a job: their identities and manifests. Pure; not thread-safe.
#ifndef WAYBILL_CORE_PROTOCOL_MEMBERSHIP_H_
#define WAYBILL_CORE_PROTOCOL_MEMBERSHIP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/plan/lanes.h"
#include "core/protocol/messages.pb.h"
#include "core/protocol/update.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Identifies a rank's stream. The owner of the streams assigns the numbers.
using ConnectionId = uint64_t;

struct Member {
  RankId id;
  ConnectionId connection = 0;
  uint64_t incarnation = 0;
  Mode mode = Mode::kShadow;  // Workers only.
  // Workers only. The worker's own claim, which Coordinator::VersionToLend() and NewestVersion()
  // check.
  uint64_t shown_version = 0;
  proto::Round shown_round;        // The update that brought shown_version.
  uint64_t shown_composition = 0;  // See UpdateId::composition.
  // The time of the report; InfinitePast if the worker joined with the version or caught up on it.
  absl::Time shown_at = absl::InfinitePast();
  uint64_t committed_version = 0;  // The newest version that this worker knows to be committed.
  std::optional<proto::Doubt> doubt;
  std::optional<proto::Unusable> unusable;  // Workers only.
  // Workers only: a version that the group has missed is to come before the next update. From
  // proto::Join; of a worker that fetches, true while it waits for a version.
  bool catch_up = false;
  bool fetches = false;         // Workers only; from proto::Join.
  uint64_t fetch = 0;           // The number of its request; 0: it does not wait for a version.
  uint64_t fetch_at_least = 0;  // The least version that answers it.

  void SetFetch(uint64_t number, uint64_t at_least) {
    fetch = number;
    fetch_at_least = at_least;
    catch_up = number != 0;
  }
  std::set<uint64_t> undecided_versions;  // Trainers only; from proto::Join.
  // The groups whose outcomes of these versions the trainer has been told.
  std::set<std::string> told_groups;
  proto::Held held;  // Trainers only.
  // The rank was sent the list of groups, and is sent every change of it.
  bool hears_of_groups = false;

  std::string manifest_hash;                 // SHA-256 of the manifest head that the rank sent.
  std::shared_ptr<const Manifest> manifest;  // Null until the manifest has arrived and was checked.
  bool established = false;                  // The rank was part of an established term.
  absl::Time join_deadline;  // A member that is still joining at this time is removed.

  proto::RankReport report;  // The latest report.
  // The lanes that were last connected, by group and by whether the worker relays on them.
  std::map<std::pair<std::string, bool>, proto::Connected> lanes;

  // Returns true until the rank's manifest has arrived and, unless the rank is reconnecting, its
  // lanes were established.
  bool is_joining() const { return !established || manifest == nullptr; }
};

// The trainers, or the workers of one group.
struct World {
  uint32_t size = 0;                 // 0 if no rank that declares it has joined.
  std::map<uint32_t, Member*> here;  // The members that have joined, by rank.
  size_t with_manifests = 0;         // The number of members in `here` with manifests.
  std::map<uint64_t, size_t> shown;  // By version: the number of members that show it.

  // Returns true if all ranks have joined and have manifests.
  bool whole() const { return size > 0 && here.size() == size && all_have_manifests(); }
  bool all_have_manifests() const { return with_manifests == here.size(); }
};

// Returns the identity in a JOIN; Membership::Check() validates it.
RankId IdOf(const proto::Join& join);

class Membership {
 public:
  explicit Membership(std::string job) : job_(std::move(job)) {}

  // Checks an identity without admitting it.
  //
  // kInvalidArgument: another job or protocol, or an invalid identity; kFailedPrecondition: the
  // size of the world differs from that which other ranks declared.
  absl::Status Check(const proto::Join& join) const;

  // Returns the lowest free rank of the role and group; join.world() if all ranks are taken.
  uint32_t FreeRank(const proto::Join& join) const;

  // Admits a rank that Check() accepts and that is free. The pointer is valid until the member is
  // removed.
  Member* Admit(ConnectionId connection, const proto::Join& join);

  void SetManifest(Member& member, std::shared_ptr<const Manifest> manifest);
  void SetShown(Member& worker, const proto::Shown& shown);
  void Remove(ConnectionId connection);
  void Clear();
  bool Contains(ConnectionId connection) const { return by_connection_.contains(connection); }
  Member* Find(ConnectionId connection);
  Member* Find(const RankId& id);

  const World& trainers() const { return trainers_; }
  // The reference stays valid until Forget(). A group without members has an empty world.
  const World& WorkersOf(const std::string& group) { return worlds_[group]; }
  // Forgets the world of a group without members.
  void Forget(const std::string& group) { worlds_.erase(group); }
  // Describes the missing ranks and manifests, as "trainer 1, worker 0 (its manifest)", or the role
  // that no rank has joined. Names the first few ranks of a role, and counts the others.
  std::string DescribeMissing(absl::string_view group) const;
  // Like DescribeMissing(), for trainers only.
  std::string DescribeMissingTrainers() const;

  // Plans the lanes between two ranks from their NICs.
  std::vector<LanePath> MakeLanes(const RankId& sender, const RankId& worker) const;

  std::map<RankId, Member>& members() { return members_; }
  const std::map<RankId, Member>& members() const { return members_; }
  const std::string& job() const { return job_; }

 private:
  uint32_t SizeOf(absl::string_view group) const;
  static void CountShown(World& world, uint64_t version, int more);
  void AddMissing(Role role, absl::string_view group, std::string& missing) const;

  const std::string job_;
  // By group; the trainers' world has the key "".
  std::map<std::string, World, std::less<>> worlds_;
  const World& trainers_ = worlds_[""];
  std::map<RankId, Member> members_;
  std::unordered_map<ConnectionId, Member*> by_connection_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_MEMBERSHIP_H_
