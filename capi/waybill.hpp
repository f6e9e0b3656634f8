// A thin C++17 coat over waybill.h: handles that destroy themselves, errors that are thrown,
// outputs that are returned. All else is said there; what is here adds no rule.
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

// What a waybill_error_t says.
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

// Owns a handle; movable. Destroying one waits where its destroy function does.
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

// What a call ended in: where that is not WAYBILL_OK, there is an error.
struct Outcome {
  waybill_status_t status = WAYBILL_OK;
  ErrorHandle error;
};

// Calls a function of waybill.h with all its arguments but the last one, the error.
template <typename Function, typename... Arguments>
Outcome Try(Function function, Arguments&&... arguments) {
  waybill_error_t* error = nullptr;
  const waybill_status_t status = function(std::forward<Arguments>(arguments)..., &error);
  return {status, ErrorHandle(error)};
}

// Throws what it says, where it is not well.
inline void Check(const Outcome& outcome) {
  if (outcome.status == WAYBILL_OK) return;
  throw Error(outcome.status, waybill_error_scope(outcome.error.get()),
              waybill_error_message(outcome.error.get()));
}

template <typename Function, typename... Arguments>
void Call(Function function, Arguments&&... arguments) {
  Check(Try(function, std::forward<Arguments>(arguments)...));
}

// The same of a function whose output, before the error, is a handle; returns it.
template <typename Owner, typename Function, typename... Arguments>
Owner Make(Function function, Arguments&&... arguments) {
  typename Owner::Type* made = nullptr;
  Call(function, std::forward<Arguments>(arguments)..., &made);
  return Owner(made);
}

// The same of a function whose output is a blob; returns its bytes.
template <typename Function, typename... Arguments>
std::string Bytes(Function function, Arguments&&... arguments) {
  const Blob blob = Make<Blob>(function, std::forward<Arguments>(arguments)...);
  return {static_cast<const char*>(waybill_blob_data(blob.get())), waybill_blob_size(blob.get())};
}

// An event, and what belongs to it.
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
  // Throws the event's error, where it has one.
  void Check() const {
    if (event_.status == WAYBILL_OK) return;
    throw Error(event_.status, waybill_error_scope(event_.error),
                waybill_error_message(event_.error));
  }

 private:
  friend std::optional<Event> Wait(const Queue& queue, int64_t deadline_ns);
  waybill_event_t event_ = WAYBILL_EVENT_INIT;
};

// The queue's oldest event; nothing where none comes by the deadline, or the queue is destroyed.
// One of the past only looks.
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
