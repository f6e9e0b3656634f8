// SPDX-License-Identifier: Apache-2.0

#include "core/control/verify_inquiry.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

// A worker's answer names at most eight pieces.
constexpr size_t kMostErrorBytes = 64 << 10;

}  // namespace

void VerifyInquiry::Begin(uint64_t request,
                          const std::vector<std::pair<ConnectionId, RankId>>& workers,
                          absl::Time now, absl::Duration timeout,
                          std::function<void(std::vector<proto::Verified>)> done) {
  request_ = request;
  timeout_ = timeout;
  deadline_ = now + timeout;
  done_ = std::move(done);
  answers_.clear();
  for (const auto& [connection, id] : workers) {
    waiting_[connection] = answers_.size();
    proto::Verified& answer = answers_.emplace_back();
    answer.set_group(id.group);
    answer.set_rank(id.rank);
  }
}

void VerifyInquiry::OnVerified(ConnectionId connection, const proto::Verified& verified) {
  if (verified.request() != request_) return;
  proto::Verified taken = verified;
  if (taken.error().message().size() > kMostErrorBytes) {
    taken.mutable_error()->set_message("what it said is too long to repeat");
  }
  Take(connection, std::move(taken));
}

void VerifyInquiry::OnGone(ConnectionId connection) {
  proto::Verified gone;
  *gone.mutable_error() = EncodeError(absl::UnavailableError("it is gone, and has not answered"));
  Take(connection, std::move(gone));
}

void VerifyInquiry::OnTime(absl::Time now) {
  if (now < deadline_) return;
  Stop(absl::DeadlineExceededError(
      absl::StrCat("it has not answered within ", absl::FormatDuration(timeout_))));
}

void VerifyInquiry::Stop(const absl::Status& why) {
  proto::Verified unanswered;
  *unanswered.mutable_error() = EncodeError(why);
  while (is_going_on()) Take(waiting_.begin()->first, unanswered);
}

void VerifyInquiry::Take(ConnectionId connection, proto::Verified verified) {
  const auto waiting = waiting_.find(connection);
  if (waiting == waiting_.end()) return;
  proto::Verified& answer = answers_[waiting->second];
  verified.set_group(answer.group());
  verified.set_rank(answer.rank());
  answer = std::move(verified);
  waiting_.erase(waiting);
  if (is_going_on()) return;
  deadline_ = absl::InfiniteFuture();
  done_(std::move(answers_));
}

}  // namespace waybill
