// SPDX-License-Identifier: Apache-2.0

// Keeps the decisions to commit in etcd.
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
// each decision, in a transaction that requires that this controller still leads and that the key
// has not changed since. So neither a deposed controller nor a delayed transaction can change
// anything.
class EtcdStore final : public DecisionStore {
 public:
  // Reads the decisions of earlier controllers. `identity` is that of a Candidate that leads.
  // `patience` is how long Append() retries without an answer.
  //
  // kDataLoss: a value in etcd is not a list of decisions. Any other error: etcd did not answer
  // within `patience`.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(
      std::shared_ptr<Etcd> etcd, const std::string& job, const std::string& identity,
      absl::Duration patience = absl::Seconds(2));

  // kNotRecorded: another controller leads (kFailedPrecondition), or etcd refused the write.
  // kUnknown: etcd did not answer whether it recorded the decision.
  std::pair<Recorded, absl::Status> Append(const Decision& decision) override;

  void Forget(const std::string& group) override;

  const std::vector<Decision>& decisions() const override { return decisions_; }

 private:
  struct Group {
    std::vector<Decision> last;
    int64_t revision = 0;  // The revision of the group's key; 0 if the key does not exist.
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
