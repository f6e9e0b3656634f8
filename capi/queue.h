// SPDX-License-Identifier: Apache-2.0

// The queue of events: trainers and workers put them in, and the caller takes them.
#ifndef WAYBILL_CAPI_QUEUE_H_
#define WAYBILL_CAPI_QUEUE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capi/context.h"
#include "capi/object.h"
#include "capi/update.h"
#include "capi/waybill.h"

namespace waybill::capi {

// An event in the queue, before it becomes a waybill_event_t.
struct QueuedEvent {
  uint32_t kind = 0;
  uint32_t source = 0;
  uint64_t token = 0;
  uint64_t user = 0;
  uint64_t version = 0;
  absl::Status status = absl::OkStatus();
  bool answer_wanted = false;
  absl::Duration pause = absl::ZeroDuration();
  std::shared_ptr<Update> update = nullptr;
  std::string group = {};
  bool unchanged = false;
  bool committed = false;
};

class Queue : public Object {
 public:
  using Handle = waybill_queue_t;
  static constexpr Kind kKind = Kind::kQueue;

  // kResourceExhausted: there is no file descriptor left.
  static absl::StatusOr<std::shared_ptr<Queue>> Create(std::shared_ptr<Context> context);
  ~Queue() override;
  void Close() override;

  void Push(QueuedEvent event);

  // Takes the oldest event. kNotFound: the queue is empty.
  absl::StatusOr<QueuedEvent> Poll();
  // Takes the oldest event, and waits for one until `deadline_ns` of the monotonic clock.
  // kDeadlineExceeded; kCancelled: the queue was closed.
  absl::StatusOr<QueuedEvent> Wait(int64_t deadline_ns);

  int descriptor() const { return descriptor_; }

 private:
  Queue(std::shared_ptr<Context> context, int descriptor)
      : context_(std::move(context)), descriptor_(descriptor) {}
  QueuedEvent TakeLocked();

  const std::shared_ptr<Context> context_;
  const int descriptor_;  // An eventfd that is readable while there are events.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<QueuedEvent> events_;
  bool closed_ = false;
};

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_QUEUE_H_
