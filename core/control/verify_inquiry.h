// SPDX-License-Identifier: Apache-2.0

// The answers of a job's workers that are asked to verify what they show.
//
// Pure: answers and the time go in, one reply comes out. No update depends on it.
#ifndef WAYBILL_CORE_CONTROL_VERIFY_INQUIRY_H_
#define WAYBILL_CORE_CONTROL_VERIFY_INQUIRY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/protocol/membership.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

// Not thread-safe. One inquiry at a time.
class VerifyInquiry {
 public:
  // `done` is called once, when all workers have answered or are gone, at the deadline, or by
  // Stop(). It must not call the inquiry. Requires at least one worker, and that none is going on.
  void Begin(uint64_t request, const std::vector<std::pair<ConnectionId, RankId>>& workers,
             absl::Time now, absl::Duration timeout,
             std::function<void(std::vector<proto::Verified>)> done);
  bool is_going_on() const { return !waiting_.empty(); }

  // An answer that nobody has asked for is ignored.
  void OnVerified(ConnectionId connection, const proto::Verified& verified);
  void OnGone(ConnectionId connection);
  void OnTime(absl::Time now);
  absl::Time next_deadline() const { return deadline_; }
  // Says of every worker that has not answered why it is not waited for.
  void Stop(const absl::Status& why);

 private:
  void Take(ConnectionId connection, proto::Verified verified);

  uint64_t request_ = 0;
  std::map<ConnectionId, size_t> waiting_;  // Those that have not answered, by place in answers_.
  absl::Duration timeout_;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::vector<proto::Verified> answers_;
  std::function<void(std::vector<proto::Verified>)> done_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_VERIFY_INQUIRY_H_
