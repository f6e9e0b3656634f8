// Who has joined a job, and what of: identities, manifests, and the plan made from them.
#ifndef WAYBILL_CORE_CONTROL_MEMBERSHIP_H_
#define WAYBILL_CORE_CONTROL_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/rank_id.h"
#include "core/control/control.pb.h"
#include "core/engine/update.h"
#include "core/plan/lanes.h"
#include "core/plan/plan.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Of one rank's stream; given out by whoever owns the streams.
using ConnectionId = uint64_t;

struct Member {
  RankId id;
  ConnectionId connection = 0;
  std::string group;  // Of a worker.
  Mode mode = Mode::kShadow;
  uint64_t shown_version = 0;
  std::string manifest_bytes;           // While its parts come.
  std::optional<Manifest> manifest;     // When all have.
  std::optional<proto::Offers> offers;  // In the epoch at hand.
  bool connected = false;               // Likewise.
  bool established = false;             // Was part of the whole job once.
  uint64_t sent_bytes = 0;
  proto::Connected lanes;  // What it said of them last.
};

// Pure: no clocks, no sockets. Not thread-safe.
class Membership {
 public:
  // `worlds` known beforehand are demanded; 0 is what the ranks declare.
  Membership(std::string job, std::string token, uint32_t trainers, uint32_t workers);

  // kUnauthenticated: a wrong token; kInvalidArgument: another job, an impossible identity;
  // kFailedPrecondition: another size of the world than the others declared; kAlreadyExists: that
  // rank is here. `member` is valid until it is removed.
  absl::StatusOr<Member*> Join(ConnectionId connection, const proto::Join& join);

  // The next part of a manifest; checked when it is whole.
  absl::Status AddManifestPart(Member& member, const proto::Part& part);

  void Remove(ConnectionId connection);
  Member* Find(ConnectionId connection);
  Member* Find(RankId id);

  // All declared ranks are here, with their manifests.
  bool complete() const;
  // "trainer 1, worker 0 (its manifest)", or the role nobody has joined in.
  std::string DescribeMissing() const;

  // From the manifests; for whoever is complete. Its index is rank.
  absl::StatusOr<Plan> MakePlan();
  // Between a trainer and a worker, by their NICs.
  std::vector<LanePath> MakeLanes(uint32_t trainer, uint32_t worker) const;

  uint32_t trainers() const { return worlds_[0]; }
  uint32_t workers() const { return worlds_[1]; }
  std::map<RankId, Member>& members() { return members_; }
  const std::map<RankId, Member>& members() const { return members_; }
  const std::string& job() const { return job_; }
  bool TokenIsRight(absl::string_view token) const;

 private:
  const std::string job_;
  const std::string token_;
  uint32_t worlds_[2];  // Trainers, workers; 0 until somebody declares it.
  std::map<RankId, Member> members_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_MEMBERSHIP_H_
