// SPDX-License-Identifier: Apache-2.0

// A thin C++17 layer over waybill.h: handles that destroy themselves, exceptions instead of error
// outputs, and outputs as return values. It adds no rules; waybill.h is the manual.
//
//   waybill::Context context = waybill::Make<waybill::Context>(waybill_context_create, nullptr);
//   waybill::Queue queue = waybill::Make<waybill::Queue>(waybill_queue_create, context.get());
//   waybill::Call(waybill_trainer_join, trainer.get(), deadline_ns, token);
#ifndef WAYBILL_CAPI_WAYBILL_HPP_
#define WAYBILL_CAPI_WAYBILL_HPP_

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "capi/waybill.h"

namespace waybill {

// The exception that carries a waybill_error_t.
class Error : public std::runtime_error {
 public:
  Error(waybill_status_t code, uint32_t scope, const std::string& message)
      : std::runtime_error(message), code_(code), scope_(scope) {}

  waybill_status_t code() const { return code_; }
  uint32_t scope() const { return scope_; }  // WAYBILL_SCOPE_*.

 private:
  waybill_status_t code_;
  uint32_t scope_;
};

// Owns a handle. Movable, not copyable. The destructor blocks if the handle's destroy function does.
template <typename T, void (*destroy)(T*)>
class Handle {
 public:
  using Type = T;

  Handle() = default;
  explicit Handle(T* handle) : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) reset(std::exchange(other.handle_, nullptr));
    return *this;
  }
  ~Handle() { reset(); }

  T* get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }
  void reset(T* handle = nullptr) { destroy(std::exchange(handle_, handle)); }
  T* release() { return std::exchange(handle_, nullptr); }

 private:
  T* handle_ = nullptr;
};

using ErrorHandle = Handle<waybill_error_t, waybill_error_destroy>;
using Blob = Handle<waybill_blob_t, waybill_blob_destroy>;
using Context = Handle<waybill_context_t, waybill_context_destroy>;
using Queue = Handle<waybill_queue_t, waybill_queue_destroy>;
using Region = Handle<waybill_region_t, waybill_region_destroy>;
using Manifest = Handle<waybill_manifest_t, waybill_manifest_destroy>;
using Layout = Handle<waybill_layout_t, waybill_layout_destroy>;
using Plan = Handle<waybill_plan_t, waybill_plan_destroy>;
using Controller = Handle<waybill_controller_t, waybill_controller_destroy>;
using Trainer = Handle<waybill_trainer_t, waybill_trainer_destroy>;
using Worker = Handle<waybill_worker_t, waybill_worker_destroy>;
using Update = Handle<waybill_update_t, waybill_update_destroy>;
using Snapshot = Handle<waybill_snapshot_t, waybill_snapshot_destroy>;

// The result of a call. `error` is set if `status` is not WAYBILL_OK.
struct Outcome {
  waybill_status_t status = WAYBILL_OK;
  ErrorHandle error;
};

// Calls a function of waybill.h. `arguments` are all its arguments except the last one, the error.
template <typename Function, typename... Arguments>
Outcome Try(Function function, Arguments&&... arguments) {
  waybill_error_t* error = nullptr;
  const waybill_status_t status = function(std::forward<Arguments>(arguments)..., &error);
  return {status, ErrorHandle(error)};
}

// Throws an Error if the call failed.
inline void Check(const Outcome& outcome) {
  if (outcome.status == WAYBILL_OK) return;
  throw Error(outcome.status, waybill_error_scope(outcome.error.get()),
              waybill_error_message(outcome.error.get()));
}

// Calls a function of waybill.h, and throws an Error if it fails.
template <typename Function, typename... Arguments>
void Call(Function function, Arguments&&... arguments) {
  Check(Try(function, std::forward<Arguments>(arguments)...));
}

// Calls a function whose last output is a handle, and returns the handle.
template <typename Owner, typename Function, typename... Arguments>
Owner Make(Function function, Arguments&&... arguments) {
  typename Owner::Type* made = nullptr;
  Call(function, std::forward<Arguments>(arguments)..., &made);
  return Owner(made);
}

// Calls a function whose output is a blob, and returns the blob's bytes.
template <typename Function, typename... Arguments>
std::string Bytes(Function function, Arguments&&... arguments) {
  const Blob blob = Make<Blob>(function, std::forward<Arguments>(arguments)...);
  return {static_cast<const char*>(waybill_blob_data(blob.get())), waybill_blob_size(blob.get())};
}

// Owns an event and the objects that belong to it.
class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, WAYBILL_EVENT_INIT)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() { waybill_event_release(&event_); }

  const waybill_event_t& operator*() const { return event_; }
  const waybill_event_t* operator->() const { return &event_; }

  std::string group() const {
    return {static_cast<const char*>(waybill_blob_data(event_.group)),
            waybill_blob_size(event_.group)};
  }
  // Throws the event's error, if it has one.
  void Check() const {
    if (event_.status == WAYBILL_OK) return;
    throw Error(event_.status, waybill_error_scope(event_.error),
                waybill_error_message(event_.error));
  }

 private:
  friend std::optional<Event> Wait(const Queue& queue, int64_t deadline_ns);
  waybill_event_t event_ = WAYBILL_EVENT_INIT;
};

// Takes the queue's oldest event and returns it. Waits for one until the deadline. Returns nullopt
// if none comes, or if the queue is destroyed meanwhile.
inline std::optional<Event> Wait(const Queue& queue, int64_t deadline_ns) {
  Event event;
  const Outcome outcome = Try(waybill_queue_wait, queue.get(), deadline_ns, &event.event_);
  const bool nothing =
      outcome.status == WAYBILL_DEADLINE_EXCEEDED || outcome.status == WAYBILL_CANCELLED;
  if (nothing && !outcome.error) return std::nullopt;
  Check(outcome);
  return event;
}

}  // namespace waybill

#endif  // WAYBILL_CAPI_WAYBILL_HPP_
