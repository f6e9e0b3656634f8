// SPDX-License-Identifier: Apache-2.0

#include "capi/queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "capi/call.h"
#include "capi/struct_size.h"

namespace waybill::capi {

absl::StatusOr<std::shared_ptr<Queue>> Queue::Create(std::shared_ptr<Context> context) {
  const int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("eventfd: ", std::strerror(errno), " (errno ", errno, ")"));
  }
  return std::shared_ptr<Queue>(new Queue(std::move(context), descriptor));
}

Queue::~Queue() { close(descriptor_); }

void Queue::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  events_.clear();
  changed_.notify_all();
}

void Queue::Push(QueuedEvent event) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  events_.push_back(std::move(event));
  if (events_.size() == 1) (void)eventfd_write(descriptor_, 1);
  changed_.notify_one();
}

QueuedEvent Queue::TakeLocked() {
  QueuedEvent event = std::move(events_.front());
  events_.pop_front();
  eventfd_t count = 0;
  if (events_.empty()) (void)eventfd_read(descriptor_, &count);
  return event;
}

absl::StatusOr<QueuedEvent> Queue::Poll() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return absl::NotFoundError("there is no event");
  return TakeLocked();
}

absl::StatusOr<QueuedEvent> Queue::Wait(int64_t deadline_ns) {
  // CLOCK_MONOTONIC is what libstdc++'s steady clock reads.
  const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
  std::unique_lock lock(mutex_);
  const bool any =
      changed_.wait_until(lock, deadline, [this] { return closed_ || !events_.empty(); });
  if (closed_) return absl::CancelledError("the queue was destroyed");
  if (!any) return absl::DeadlineExceededError("no event came by the deadline");
  return TakeLocked();
}

namespace {

// Makes what the caller will own. On an exception nothing is lost but the event.
void Fill(QueuedEvent event, waybill_event_t* out) {
  waybill_event_t filled = WAYBILL_EVENT_INIT;
  filled.kind = event.kind;
  filled.source = event.source;
  filled.token = event.token;
  filled.user = event.user;
  filled.version = event.version;
  filled.status = static_cast<waybill_status_t>(event.status.code());
  filled.answer_wanted = event.answer_wanted ? 1 : 0;
  filled.unchanged = event.unchanged ? 1 : 0;
  filled.committed = event.committed ? 1 : 0;
  filled.pause_ns = static_cast<uint64_t>(absl::ToInt64Nanoseconds(event.pause));
  if (event.update != nullptr) filled.update = MakeHandle(std::move(event.update));
  if (!event.status.ok()) {
    filled.error = MakeHandle(std::make_shared<Error>(std::move(event.status)));
  }
  if (!event.group.empty()) {
    filled.group = MakeHandle(std::make_shared<Blob>(std::move(event.group)));
  }
  WriteStruct(filled, out);
}

// That there is nothing is no error worth an object.
bool IsNothing(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

template <typename Take>
waybill_status_t TakeEvent(absl::string_view doing, waybill_queue_t* queue,
                           waybill_event_t* out_event, waybill_error_t** error, Take take) {
  waybill_status_t nothing = WAYBILL_OK;
  const waybill_status_t status = Call(doing, error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckStructSize(out_event, "out_event"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<Queue>(queue, "queue"));
    absl::StatusOr<QueuedEvent> event = take(*found);
    if (IsNothing(event.status())) {
      nothing = static_cast<waybill_status_t>(event.status().code());
      return absl::OkStatus();
    }
    if (!event.ok()) return event.status();
    Fill(*std::move(event), out_event);
    return absl::OkStatus();
  });
  return status != WAYBILL_OK ? status : nothing;
}

}  // namespace
}  // namespace waybill::capi

using waybill::capi::Call;
using waybill::capi::Context;
using waybill::capi::Find;
using waybill::capi::FindObject;
using waybill::capi::Queue;

waybill_status_t waybill_queue_create(waybill_context_t* context, waybill_queue_t** out_queue,
                                      waybill_error_t** error) {
  return Call("create a queue", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(waybill::capi::CheckOutput(out_queue, "out_queue"));
    WAYBILL_ASSIGN_OR_RETURN(auto parent, Find<Context>(context, "context"));
    WAYBILL_ASSIGN_OR_RETURN(auto queue, Queue::Create(std::move(parent)));
    *out_queue = waybill::capi::MakeHandle(std::move(queue));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_queue_poll(waybill_queue_t* queue, waybill_event_t* out_event,
                                    waybill_error_t** error) {
  return waybill::capi::TakeEvent("poll a queue", queue, out_event, error,
                                  [](Queue& found) { return found.Poll(); });
}

waybill_status_t waybill_queue_wait(waybill_queue_t* queue, int64_t deadline_ns,
                                    waybill_event_t* out_event, waybill_error_t** error) {
  constexpr int64_t kDefault = 60'000'000'000;
  const int64_t deadline = deadline_ns == 0 ? waybill_now_ns() + kDefault : deadline_ns;
  return waybill::capi::TakeEvent("wait for an event", queue, out_event, error,
                                  [&](Queue& found) { return found.Wait(deadline); });
}

int waybill_queue_fd(const waybill_queue_t* queue) {
  const auto found = FindObject<Queue>(queue);
  return found == nullptr ? -1 : found->descriptor();
}

waybill_status_t waybill_queue_post(waybill_queue_t* queue, uint64_t token,
                                    waybill_error_t** error) {
  return Call("post to a queue", error, [&]() -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<Queue>(queue, "queue"));
    found->Push({.kind = WAYBILL_EVENT_POSTED, .source = WAYBILL_SOURCE_QUEUE, .token = token});
    return absl::OkStatus();
  });
}

void waybill_event_release(waybill_event_t* event) {
  if (!waybill::capi::CheckStructSize(event, "event").ok()) return;
  waybill_update_destroy(event->update);
  waybill_error_destroy(event->error);
  waybill_blob_destroy(event->group);
  waybill_event_t empty = WAYBILL_EVENT_INIT;
  waybill::capi::WriteStruct(empty, event);
}

void waybill_queue_destroy(waybill_queue_t* queue) { waybill::capi::DestroyObject<Queue>(queue); }
