// The ranks that have joined a job: their identities, manifests and lanes. Pure; not thread-safe.
#ifndef WAYBILL_CORE_PROTOCOL_MEMBERSHIP_H_
#define WAYBILL_CORE_PROTOCOL_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
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
  std::string group;  // Workers only.
  Mode mode = Mode::kShadow;
  uint64_t shown_version = 0;      // Workers only.
  uint64_t committed_version = 0;  // The newest that this worker knows to be committed.
  std::optional<proto::Doubt> doubt;
  uint64_t undecided_version = 0;  // Trainers only; see proto::Join.

  std::shared_ptr<const Manifest> manifest;  // Null until it has come and was checked.
  bool established = false;                  // Was part of the whole job once.
  absl::Time join_deadline;                  // A member that is not established leaves then.

  // In the epoch at hand.
  std::optional<proto::Offers> offers;
  bool connected = false;

  proto::RankReport report;                                     // The last one.
  google::protobuf::RepeatedPtrField<proto::LaneReport> lanes;  // As it was last connected.
};

class Membership {
 public:
  // `trainers` and `workers`: how many ranks the job needs; 0 means as many as they declare.
  Membership(std::string job, std::string token, uint32_t trainers, uint32_t workers);

  // Checks an identity without admitting it.
  //
  // kUnauthenticated: a wrong token; kInvalidArgument: another job or protocol, an impossible
  // identity; kFailedPrecondition: another size of the world than the others declared.
  absl::Status Check(const proto::Join& join) const;

  // Admits a rank that Check() accepts and whose place is free. The pointer is valid until the
  // member is removed.
  Member* Admit(ConnectionId connection, const proto::Join& join);

  void Remove(ConnectionId connection);
  Member* Find(ConnectionId connection);
  Member* Find(RankId id);

  // Returns true if all declared ranks are here with their manifests.
  bool complete() const;
  // "trainer 1, worker 0 (its manifest)", or the role in which nobody has joined.
  std::string DescribeMissing() const;

  // The lanes between a trainer and a worker, by their NICs.
  std::vector<LanePath> MakeLanes(uint32_t trainer, uint32_t worker) const;

  // The number of ranks in each role; 0 until somebody declares it.
  uint32_t trainers() const { return worlds_[0]; }
  uint32_t workers() const { return worlds_[1]; }
  std::map<RankId, Member>& members() { return members_; }
  const std::map<RankId, Member>& members() const { return members_; }
  const std::string& job() const { return job_; }
  bool TokenIsRight(absl::string_view token) const;

 private:
  const std::string job_;
  const std::string token_;
  const uint32_t demanded_[2];
  uint32_t worlds_[2];
  std::map<RankId, Member> members_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_MEMBERSHIP_H_
