// SPDX-License-Identifier: Apache-2.0

#include "core/control/image_publisher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// The token of the publisher's own releases. Users' tokens are counted from 1.
constexpr uint64_t kOwnToken = ~uint64_t{0};

}  // namespace

void ImagePublisher::Publish(uint64_t token, const PublishCommand& command) {
  waiting_.push_back({token, command, absl::OkStatus()});
}

void ImagePublisher::Proceed(uint64_t token, const absl::Status& done) {
  if (!done.ok()) return EndWaiting(token, done);
  for (Waiting& publish : waiting_) {
    if (publish.token == token) publish.command.waits_for.clear();
  }
}

void ImagePublisher::Cancel(uint64_t token, absl::Time now) {
  EndWaiting(token, absl::CancelledError("cancelled"));
  session_.Cancel(token, now);
}

void ImagePublisher::Leave() {
  image_->Cancel();
  if (state_ == State::kCopying) state_ = State::kFree;
  for (const Waiting& publish : std::exchange(waiting_, {})) {
    End(publish, absl::CancelledError("it has left the job"));
  }
}

void ImagePublisher::OnNotice(Notice notice) {
  if (notice.kind == Notice::Kind::kReleased) {
    // A refusal means that the user's release is under way, whose end frees the image too.
    const bool held = state_ == State::kHeld || state_ == State::kReleasing;
    if (notice.status.ok() && held) state_ = State::kFree;
    if (notice.token == kOwnToken) return;
  }
  if (notice.kind == Notice::Kind::kPublished && state_ == State::kSending &&
      notice.token == sending_.token) {
    state_ = State::kHeld;
    if (sending_.told && notice.status.ok()) return;
    if (sending_.told) {
      notice.kind = Notice::Kind::kDecided;
      notice.token = 0;
    }
  }
  tell_(std::move(notice));
}

void ImagePublisher::Step(absl::Time now) {
  for (;;) {
    EndLate(now);
    if (waiting_.empty()) return;
    if (state_ == State::kCopying) {
      const std::optional<absl::Status> copied = image_->TakeEnd();
      if (!copied) return;
      state_ = State::kFree;
      HandOver(*copied, now);
      continue;
    }
    const PublishCommand& next = waiting_.front().command;
    if (!next.waits_for.empty()) return;
    // A publish that will be refused must not take the held version away.
    if (const absl::Status refused = session_.CheckPublish(next.version); !refused.ok()) {
      EndWaiting(waiting_.front().token, refused);
      continue;
    }
    if (state_ == State::kSending || state_ == State::kReleasing) return;
    if (state_ == State::kHeld) {
      state_ = State::kReleasing;
      session_.Release(kOwnToken, now);
    } else {
      state_ = State::kCopying;
      image_->BeginCopy(next.version, next.selection);
    }
  }
}

absl::Time ImagePublisher::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Waiting& publish : waiting_) {
    if (!IsCopying(publish)) next = std::min(next, publish.command.deadline);
  }
  return next;
}

void ImagePublisher::End(const Waiting& publish, const absl::Status& status) {
  tell_(
      {.kind = Notice::Kind::kPublished,
       .token = publish.token,
       .version = publish.command.version,
       .status = WithScope(While(absl::StrCat("publish version ", publish.command.version), status),
                           Scope::kUpdate)});
}

void ImagePublisher::EndWaiting(uint64_t token, const absl::Status& status) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& publish) { return publish.token == token; });
  if (found == waiting_.end()) return;
  // The copy reads the tensors until it has ended.
  if (IsCopying(*found)) {
    found->status = status;
    return;
  }
  const Waiting ended = std::move(*found);
  waiting_.erase(found);
  End(ended, status);
}

void ImagePublisher::EndLate(absl::Time now) {
  for (size_t i = 0; i < waiting_.size();) {
    const PublishCommand& command = waiting_[i].command;
    if (IsCopying(waiting_[i]) || command.deadline > now) {
      ++i;
      continue;
    }
    EndWaiting(waiting_[i].token,
               absl::DeadlineExceededError(
                   command.waits_for.empty()
                       ? "the image of an earlier version was still being sent at its deadline"
                       : command.waits_for));
  }
}

void ImagePublisher::HandOver(const absl::Status& copied, absl::Time now) {
  Waiting publish = std::move(waiting_.front());
  waiting_.pop_front();
  publish.status.Update(copied);
  if (!publish.status.ok()) return End(publish, publish.status);
  publish.command.hold = true;
  publish.command.composition = image_->composition();
  publish.command.unknown_tensors = image_->unknown_tensors();
  state_ = State::kSending;
  sending_ = {.token = publish.token};
  session_.Publish(publish.token, publish.command, now);
  const PublishCommand& command = publish.command;
  if (state_ != State::kSending || command.until_committed || command.max_behind > 0) return;
  sending_.told = true;
  tell_({.kind = Notice::Kind::kPublished,
         .token = publish.token,
         .version = publish.command.version});
}

}  // namespace waybill
