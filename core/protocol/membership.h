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

// Names a rank's stream. Whoever owns the streams gives the numbers out.
using ConnectionId = uint64_t;

struct Member {
  RankId id;
  ConnectionId connection = 0;
  uint64_t incarnation = 0;
  Mode mode = Mode::kShadow;  // Workers only.
  // Workers only, and what they say: Coordinator::VersionToLend() and NewestVersion() judge it.
  uint64_t shown_version = 0;
  proto::Round shown_round;  // The update that brought it.
  // When it said so; the past if it came with it, or has caught up on it.
  absl::Time shown_at = absl::InfinitePast();
  uint64_t committed_version = 0;  // The newest that this worker knows to be committed.
  std::optional<proto::Doubt> doubt;
  std::optional<proto::Unusable> unusable;  // Workers only.
  bool catch_up = false;                    // Workers only, by proto::Join.
  std::set<uint64_t> undecided_versions;    // Trainers only, by proto::Join.
  std::set<std::string> told_groups;        // Those that have told a trainer what became of them.
  proto::Held held;                         // Trainers only.
  bool hears_of_groups = false;  // It was told which are here, and is told of every change.

  std::string manifest_hash;                 // SHA-256 of the head that the rank has sent.
  std::shared_ptr<const Manifest> manifest;  // Null until it has come and was checked.
  bool established = false;                  // Was part of a term whose lanes carried.
  absl::Time join_deadline;                  // A member that is still joining leaves then.

  proto::RankReport report;  // The last one.
  // As they were last connected: by group, and whether the worker relays by them.
  std::map<std::pair<std::string, bool>, proto::Connected> lanes;

  // Returns true until the rank has said what it holds and, unless it comes back, has lanes.
  bool is_joining() const { return !established || manifest == nullptr; }
};

// The trainers, or the workers of one group.
struct World {
  uint32_t size = 0;                 // 0 while nobody is here who declares it.
  std::map<uint32_t, Member*> here;  // By rank.
  size_t with_manifests = 0;         // How many of them have manifests.
  std::map<uint64_t, size_t> shown;  // How many of them show each version.

  // Returns true if all are here, with their manifests.
  bool whole() const { return size > 0 && here.size() == size && all_have_manifests(); }
  bool all_have_manifests() const { return with_manifests == here.size(); }
};

// The identity that a rank claims. Check() says whether it can be.
RankId IdOf(const proto::Join& join);

class Membership {
 public:
  explicit Membership(std::string job) : job_(std::move(job)) {}

  // Checks an identity without admitting it.
  //
  // kInvalidArgument: another job or protocol, an impossible identity; kFailedPrecondition: another
  // size of the world than the others declared.
  absl::Status Check(const proto::Join& join) const;

  // Returns the lowest rank of that role and group that nobody has. If all ranks are taken, returns
  // their number, join.world().
  uint32_t FreeRank(const proto::Join& join) const;

  // Admits a rank that Check() accepts and whose place is free. The pointer is valid until the
  // member is removed.
  Member* Admit(ConnectionId connection, const proto::Join& join);

  void SetManifest(Member& member, std::shared_ptr<const Manifest> manifest);
  void SetShown(Member& worker, uint64_t version, const proto::Round& round);
  void Remove(ConnectionId connection);
  void Clear();
  bool Contains(ConnectionId connection) const { return by_connection_.contains(connection); }
  Member* Find(ConnectionId connection);
  Member* Find(const RankId& id);

  const World& trainers() const { return trainers_; }
  // The reference stays valid until Forget(); a group of which nobody is here has an empty world.
  const World& WorkersOf(const std::string& group) { return worlds_[group]; }
  // Forgets the world of a group of which nobody is here.
  void Forget(const std::string& group) { worlds_.erase(group); }
  // "trainer 1, worker 0 (its manifest)", or the role in which nobody has joined. Names the first
  // few ranks of a role, and counts the others.
  std::string DescribeMissing(absl::string_view group) const;
  // The same of trainers alone.
  std::string DescribeMissingTrainers() const;

  // Returns the lanes between two ranks, by their NICs.
  std::vector<LanePath> MakeLanes(const RankId& sender, const RankId& worker) const;

  std::map<RankId, Member>& members() { return members_; }
  const std::map<RankId, Member>& members() const { return members_; }
  const std::string& job() const { return job_; }

 private:
  uint32_t SizeOf(absl::string_view group) const;
  static void CountShown(World& world, uint64_t version, int more);
  void AddMissing(Role role, absl::string_view group, std::string& missing) const;

  const std::string job_;
  std::map<std::string, World, std::less<>> worlds_;  // By group; that of trainers by "".
  const World& trainers_ = worlds_[""];
  std::map<RankId, Member> members_;
  std::unordered_map<ConnectionId, Member*> by_connection_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_MEMBERSHIP_H_
