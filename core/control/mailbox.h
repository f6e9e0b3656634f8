// SPDX-License-Identifier: Apache-2.0

// Collects the notices of a rank for callers that wait for them.
#ifndef WAYBILL_CORE_CONTROL_MAILBOX_H_
#define WAYBILL_CORE_CONTROL_MAILBOX_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/protocol/rank_session.h"

namespace waybill {

// Thread-safe.
class Mailbox {
 public:
  virtual ~Mailbox() = default;

  // Returns the token of a new command.
  uint64_t NewToken() {
    const std::lock_guard lock(mutex_);
    return ++last_token_;
  }

  // Adds a notice from the rank.
  void Put(const Notice& notice) {
    {
      const std::lock_guard lock(mutex_);
      if (notice.token != 0) ends_.emplace(notice.token, notice.status);
      if (notice.kind == Notice::Kind::kEnded) end_ = notice.status;
      OnNotice(notice);
    }
    changed_.notify_all();
  }

  // Waits for the command to end, and returns its status. `stop` is called once if `cancel` is
  // requested before.
  absl::Status Await(uint64_t token, const std::stop_token& cancel = {},
                     const std::function<void()>& stop = nullptr) {
    const std::stop_callback on_cancel(cancel, [&] {
      if (stop) stop();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ends_.contains(token); });
    absl::Status status = ends_.at(token);
    ends_.erase(token);
    return status;
  }

  // Waits until ready() returns true; it is called under the lock. Returns false at the deadline.
  template <typename Ready>
  bool AwaitUntil(absl::Time deadline, Ready ready) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, ToSteadyTimePoint(deadline), ready);
  }
  void Wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  // Returns why the controller dismissed this rank; OK if it has not. Call it under the lock.
  const absl::Status& end() const { return end_; }

 protected:
  virtual void OnNotice(const Notice&) {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_token_ = 0;
  std::map<uint64_t, absl::Status> ends_;  // By token: the results of commands that have ended.
  absl::Status end_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_MAILBOX_H_
