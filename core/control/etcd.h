// SPDX-License-Identifier: Apache-2.0

// A client of etcd.
#ifndef WAYBILL_CORE_CONTROL_ETCD_H_
#define WAYBILL_CORE_CONTROL_ETCD_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/control/etcd.pb.h"
#include "core/control/identity.h"

namespace waybill {

// Returns true for "etcd://...".
bool IsEtcdAddress(absl::string_view state);

// Returns "a:2379" and "b:2379" for "etcd://a:2379,b:2379". kInvalidArgument: `state` is not such a
// list.
absl::StatusOr<std::vector<std::string>> ParseEtcdAddress(absl::string_view state);

// Thread-safe. Tests replace it by an implementation that loses requests and answers.
class Etcd {
 public:
  // Connects in the background, and again whenever the connection breaks. With `identity`, by TLS:
  // etcd proves that one of its authorities has certified the endpoint's name, and is shown its
  // certificate, if there is one. etcd can take that certificate's common name for a user's.
  // Without it, nothing is encrypted.
  static std::unique_ptr<Etcd> Connect(const std::vector<std::string>& endpoints,
                                       const std::optional<Identity>& identity = std::nullopt);
  virtual ~Etcd() = default;

  // Each call asks one endpoint, and gives up after kEtcdCallTimeout. After a failure the next call
  // asks the next endpoint.
  //
  // kResourceExhausted and kPermissionDenied: etcd refused the request. After any other error of
  // Txn() the transaction may have taken effect, or may still do so.
  virtual absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) = 0;
  virtual absl::StatusOr<etcdserverpb::TxnResponse> Txn(
      const etcdserverpb::TxnRequest& request) = 0;
};

inline constexpr absl::Duration kEtcdCallTimeout = absl::Milliseconds(500);

// The keys of a job. A job's name has no slash.
struct EtcdKeys {
  explicit EtcdKeys(const std::string& job)
      : leadership("waybill/" + job + "/leader/"),
        identity(leadership + "identity"),
        beat(leadership + "beat"),
        decisions("waybill/" + job + "/decisions/") {}

  const std::string leadership;  // The prefix of the next two.
  const std::string identity;    // The leader's identity. Changes only with the leader.
  const std::string beat;        // Written by the leader every kBeatPeriod.
  const std::string decisions;   // The prefix of the groups' keys; a group's name follows it.
};

// Returns a read of all keys that begin with `prefix`, which is not empty.
etcdserverpb::RangeRequest ReadPrefix(const std::string& prefix);

// Extend a transaction. RequireValue() and RequireRevision() let it take effect only if the key has
// the value or the revision (0: does not exist). AddPut() writes the key if all requirements hold,
// and AddDelete() deletes it.
void RequireValue(etcdserverpb::TxnRequest& request, const std::string& key,
                  const std::string& value);
void RequireRevision(etcdserverpb::TxnRequest& request, const std::string& key, int64_t revision);
void AddPut(etcdserverpb::TxnRequest& request, const std::string& key, const std::string& value);
void AddDelete(etcdserverpb::TxnRequest& request, const std::string& key);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_ETCD_H_
