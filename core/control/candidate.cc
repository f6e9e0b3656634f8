// SPDX-License-Identifier: Apache-2.0

#include "core/control/candidate.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"

namespace waybill {
namespace {

// Returns a unique identity: 128 random bits, then the address.
std::string DrawIdentity(const std::string& address) {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", random());
  return absl::StrCat(id, " ", address);
}

std::string AddressOf(const std::string& identity) {
  const size_t space = identity.find(' ');
  return space == std::string::npos ? "" : identity.substr(space + 1);
}

}  // namespace

Candidate::Candidate(std::shared_ptr<Etcd> etcd, const std::string& job, const std::string& address)
    : etcd_(std::move(etcd)),
      keys_(job),
      address_(address),
      identity_(DrawIdentity(address)),
      thread_([this] { Main(); }) {}

Candidate::~Candidate() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Candidate::State Candidate::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Candidate::Become(State state) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(state);
}

void Candidate::Main() {
  Election election(identity_);
  Role role = Role::kStandby;
  while (role != Role::kDeposed) {
    const absl::Time next = SteadyNow() + kBeatPeriod;
    role == Role::kStandby ? StandBy(election) : Beat();
    std::unique_lock lock(mutex_);
    role = state_.role;
    if (changed_.wait_until(lock, ToSteadyTimePoint(next), [this] { return ending_; })) return;
  }
}

void Candidate::StandBy(Election& election) {
  const absl::StatusOr<etcdserverpb::RangeResponse> read =
      etcd_->Range(ReadPrefix(keys_.leadership));
  if (!read.ok()) {
    election.OnReadFailed();
    return Become(
        {Role::kStandby, state().leader_address, While("who leads the job", read.status())});
  }
  Leadership found;
  for (const etcdserverpb::KeyValue& pair : read->kvs()) {
    if (pair.key() == keys_.identity) found.leader = pair.value();
    if (pair.key() == keys_.beat) found.beat_revision = pair.mod_revision();
  }
  switch (election.OnRead(found)) {
    case Election::Step::kWait:
      return Become({Role::kStandby, AddressOf(found.leader), absl::OkStatus()});
    case Election::Step::kLead:
      return Become({Role::kLeader, address_, absl::OkStatus()});
    case Election::Step::kTakeOver:
      break;
  }
  etcdserverpb::TxnRequest take;
  RequireRevision(take, keys_.beat, found.beat_revision);
  AddPut(take, keys_.identity, identity_);
  AddPut(take, keys_.beat, "");
  const absl::StatusOr<etcdserverpb::TxnResponse> taken = etcd_->Txn(take);
  if (taken.ok() && taken->succeeded()) {
    return Become({Role::kLeader, address_, absl::OkStatus()});
  }
  // Another standby was faster, or the answer was lost; the next read shows which.
  Become({Role::kStandby, AddressOf(found.leader),
          While("take the leadership of the job", taken.status())});
}

void Candidate::Beat() {
  etcdserverpb::TxnRequest beat;
  RequireValue(beat, keys_.identity, identity_);
  AddPut(beat, keys_.beat, "");
  const absl::StatusOr<etcdserverpb::TxnResponse> done = etcd_->Txn(beat);
  // While etcd is unreachable, no other controller can take over either.
  if (!done.ok()) return Become({Role::kLeader, address_, While("beat", done.status())});
  if (done->succeeded()) return Become({Role::kLeader, address_, absl::OkStatus()});
  Become({Role::kDeposed, "", absl::OkStatus()});
}

}  // namespace waybill
