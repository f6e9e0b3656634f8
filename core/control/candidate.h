// SPDX-License-Identifier: Apache-2.0

// A controller's part in the election of its job's leader.
#ifndef WAYBILL_CORE_CONTROL_CANDIDATE_H_
#define WAYBILL_CORE_CONTROL_CANDIDATE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "core/control/election.h"
#include "core/control/etcd.h"

namespace waybill {

// Takes part in the election from construction to destruction, on a thread of its own. A candidate
// starts as a standby. Once it leads, it writes beats until another candidate takes over. It leads
// at most once. It does not announce its end: the others notice that the beats stop. Thread-safe.
class Candidate {
 public:
  // `address` is where this controller listens if it leads, for people.
  Candidate(std::shared_ptr<Etcd> etcd, const std::string& job, const std::string& address);
  ~Candidate();

  enum class Role { kStandby, kLeader, kDeposed };
  struct State {
    Role role = Role::kStandby;
    std::string leader_address;  // Empty if nobody leads, or the leader is unknown.
    absl::Status trouble;        // The error of the last call to etcd; OK if it succeeded.
  };
  State state() const;

  // The value of EtcdKeys::identity while this candidate leads, and never at another time.
  const std::string& identity() const { return identity_; }

 private:
  void Main();
  void StandBy(Election& election);
  void Beat();
  void Become(State state);

  const std::shared_ptr<Etcd> etcd_;
  const EtcdKeys keys_;
  const std::string address_;
  const std::string identity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_;  // Guarded by mutex_, like `ending_`.
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CANDIDATE_H_
