// SPDX-License-Identifier: Apache-2.0

// The decisions to commit, in etcd.
#ifndef WAYBILL_CORE_CONTROL_ETCD_STORE_H_
#define WAYBILL_CORE_CONTROL_ETCD_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/control/decision_store.h"
#include "core/control/etcd.h"

namespace waybill {

// One key for each group holds its last decisions, as lines of text. The leader rewrites it with
// each decision, in a transaction that requires that it still leads and that the key is as it was
// last seen: neither a controller that was deposed nor a transaction that was late can change
// anything.
class EtcdStore final : public DecisionStore {
 public:
  // Reads the decisions of the controllers before this one. `identity` is that of the leader: of a
  // Candidate that leads already. `patience` is how long an Append() goes on without an answer.
  //
  // kDataLoss: what etcd has are not decisions; otherwise etcd did not answer within `patience`.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(
      std::shared_ptr<Etcd> etcd, const std::string& job, const std::string& identity,
      absl::Duration patience = absl::Seconds(2));

  // kNotRecorded: another controller leads (kFailedPrecondition), or etcd has refused to write.
  // kUnknown: etcd did not say whether it has recorded the decision.
  std::pair<Recorded, absl::Status> Append(const Decision& decision) override;

  void Forget(const std::string& group) override;

  const std::vector<Decision>& decisions() const override { return decisions_; }

 private:
  struct Group {
    std::vector<Decision> last;
    int64_t revision = 0;  // Of the group's key; 0: it does not exist.
  };

  EtcdStore(std::shared_ptr<Etcd> etcd, const std::string& job, std::string identity,
            absl::Duration patience)
      : etcd_(std::move(etcd)), keys_(job), identity_(std::move(identity)), patience_(patience) {}
  absl::Status Read();
  absl::Status ReadGroup(const etcdserverpb::KeyValue& pair);
  std::pair<Recorded, absl::Status> Fail(absl::Status why);

  const std::shared_ptr<Etcd> etcd_;
  const EtcdKeys keys_;
  const std::string identity_;
  const absl::Duration patience_;
  bool broken_ = false;
  std::map<std::string, Group> groups_;
  std::vector<Decision> decisions_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_ETCD_STORE_H_
