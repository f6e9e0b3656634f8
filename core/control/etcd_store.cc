// SPDX-License-Identifier: Apache-2.0

#include "core/control/etcd_store.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/decision_text.h"

namespace waybill {
namespace {

using etcdserverpb::KeyValue;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// The pause between tries, because calls fail at once while etcd is unreachable.
constexpr absl::Duration kPauseBetweenCalls = absl::Milliseconds(50);

std::string TextOf(const std::vector<Decision>& decisions) {
  std::string text;
  for (const Decision& decision : decisions) text += EncodeDecision(decision);
  return text;
}

// Returns true if etcd has certainly not executed the request.
bool IsRefused(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsPermissionDenied(status);
}

absl::Status Deposed(const std::string& leader) {
  return absl::FailedPreconditionError(
      absl::StrCat("this controller does not lead any more; the leader is \"", leader, "\""));
}

// The answer to a transaction of Append() whose conditions did not hold.
struct Refusal {
  std::string leader;
  std::string text;      // The value of the group's key.
  int64_t revision = 0;  // The revision of the group's key.
};

Refusal ReadRefusal(const TxnResponse& response, const EtcdKeys& keys) {
  Refusal refusal;
  for (const etcdserverpb::ResponseOp& part : response.responses()) {
    for (const KeyValue& pair : part.response_range().kvs()) {
      if (pair.key() == keys.identity) {
        refusal.leader = pair.value();
      } else {
        refusal.text = pair.value();
        refusal.revision = pair.mod_revision();
      }
    }
  }
  return refusal;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Open(std::shared_ptr<Etcd> etcd,
                                                           const std::string& job,
                                                           const std::string& identity,
                                                           absl::Duration patience) {
  std::unique_ptr<EtcdStore> store(new EtcdStore(std::move(etcd), job, identity, patience));
  WAYBILL_RETURN_IF_ERROR(store->Read());
  return store;
}

absl::Status EtcdStore::Read() {
  const absl::Time deadline = SteadyNow() + patience_;
  absl::StatusOr<etcdserverpb::RangeResponse> read = etcd_->Range(ReadPrefix(keys_.decisions));
  while (!read.ok() && SteadyNow() + kPauseBetweenCalls < deadline) {
    absl::SleepFor(kPauseBetweenCalls);
    read = etcd_->Range(ReadPrefix(keys_.decisions));
  }
  if (!read.ok()) return While("read the decisions", read.status());
  for (const KeyValue& pair : read->kvs()) WAYBILL_RETURN_IF_ERROR(ReadGroup(pair));
  return absl::OkStatus();
}

absl::Status EtcdStore::ReadGroup(const KeyValue& pair) {
  Group& group = groups_[pair.key().substr(keys_.decisions.size())];
  group.revision = pair.mod_revision();
  for (const absl::string_view line : absl::StrSplit(pair.value(), '\n', absl::SkipEmpty())) {
    const std::optional<Decision> decision = DecodeDecision(line);
    if (!decision || keys_.decisions + decision->group != pair.key()) {
      return absl::DataLossError(absl::StrCat("etcd: key \"", pair.key(),
                                              "\" holds what is no decision of its group: \"",
                                              line.substr(0, 80), "\""));
    }
    group.last.push_back(*decision);
    decisions_.push_back(*decision);
  }
  return absl::OkStatus();
}

std::pair<Recorded, absl::Status> EtcdStore::Fail(absl::Status why) {
  broken_ = true;
  return {Recorded::kUnknown, std::move(why)};
}

std::pair<Recorded, absl::Status> EtcdStore::Append(const Decision& decision) {
  if (broken_) return {Recorded::kUnknown, absl::UnavailableError("etcd: it failed before")};
  const std::string key = keys_.decisions + decision.group;
  Group& group = groups_[decision.group];
  std::vector<Decision> next = group.last;
  next.push_back(decision);
  next = KeepLast(next);
  const std::string text = TextOf(next);

  TxnRequest request;
  RequireValue(request, keys_.identity, identity_);
  // Without this condition a delayed transaction, which was repeated meanwhile, would erase later
  // decisions.
  RequireRevision(request, key, group.revision);
  AddPut(request, key, text);
  request.add_failure()->mutable_request_range()->set_key(keys_.identity);
  request.add_failure()->mutable_request_range()->set_key(key);

  const auto recorded = [&](int64_t revision) -> std::pair<Recorded, absl::Status> {
    group = {std::move(next), revision};
    return {Recorded::kDurable, absl::OkStatus()};
  };
  const absl::Time deadline = SteadyNow() + patience_;
  // An earlier try may have taken effect, or may still do so.
  for (bool in_doubt = false;; in_doubt = true) {
    const absl::StatusOr<TxnResponse> response = etcd_->Txn(request);
    if (response.ok() && response->succeeded()) return recorded(response->header().revision());
    if (response.ok()) {
      const Refusal found = ReadRefusal(*response, keys_);
      if (absl::StrContains(found.text, EncodeDecision(decision))) return recorded(found.revision);
      if (found.leader == identity_ && found.revision == 0 && group.revision != 0) {
        groups_.erase(decision.group);  // Forget() deleted the key, and its answer was lost.
        return Append(decision);
      }
      const absl::Status why =
          found.leader == identity_
              ? absl::DataLossError(absl::StrCat("etcd: key \"", key, "\" was changed by others"))
              : Deposed(found.leader);
      // This identity never leads again, so no earlier try can still succeed. An earlier try may
      // have succeeded and be overwritten only if other controllers have written the key meanwhile.
      if (!in_doubt || found.revision == group.revision) return {Recorded::kNotRecorded, why};
      return Fail(why);
    }
    if (!in_doubt && IsRefused(response.status())) {
      return {Recorded::kNotRecorded, response.status()};
    }
    if (SteadyNow() + kPauseBetweenCalls >= deadline) return Fail(response.status());
    absl::SleepFor(kPauseBetweenCalls);
  }
}

// If the answer is lost, the key may or may not exist; Append() handles both.
void EtcdStore::Forget(const std::string& group) {
  const auto found = groups_.find(group);
  if (broken_ || found == groups_.end()) return;
  const std::string key = keys_.decisions + group;
  TxnRequest request;
  RequireValue(request, keys_.identity, identity_);
  RequireRevision(request, key, found->second.revision);
  AddDelete(request, key);
  const absl::StatusOr<TxnResponse> response = etcd_->Txn(request);
  if (response.ok() && response->succeeded()) groups_.erase(found);
}

}  // namespace waybill
