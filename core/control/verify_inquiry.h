// SPDX-License-Identifier: Apache-2.0

// Collects the answers of a job's workers that are asked to verify their shown versions.
//
// Pure: answers and the time go in, one reply comes out. No update depends on an inquiry.
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
  // Begins an inquiry. Calls `done` once: when all workers have answered or are gone, at the
  // deadline, or in Stop(). `done` must not call this object. Requires at least one worker, and
  // that no inquiry is going on.
  void Begin(uint64_t request, const std::vector<std::pair<ConnectionId, RankId>>& workers,
             absl::Time now, absl::Duration timeout,
             std::function<void(std::vector<proto::Verified>)> done);
  bool is_going_on() const { return !waiting_.empty(); }

  // Records an answer. An answer that was not asked for is ignored.
  void OnVerified(ConnectionId connection, const proto::Verified& verified);
  void OnGone(ConnectionId connection);
  void OnTime(absl::Time now);
  absl::Time next_deadline() const { return deadline_; }
  // Ends the inquiry with `why` as the answer of every worker that has not answered.
  void Stop(const absl::Status& why);

 private:
  void Take(ConnectionId connection, proto::Verified verified);

  uint64_t request_ = 0;
  // Workers that have not answered, with their index in answers_.
  std::map<ConnectionId, size_t> waiting_;
  absl::Duration timeout_;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::vector<proto::Verified> answers_;
  std::function<void(std::vector<proto::Verified>)> done_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_VERIFY_INQUIRY_H_
