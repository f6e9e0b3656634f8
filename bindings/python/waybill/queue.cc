// SPDX-License-Identifier: Apache-2.0

// Queues and what comes out of them.
#include <poll.h>

#include <algorithm>
#include <optional>

#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

// Python handles a signal at least this often. A signal to the waiting thread ends poll(2) at once.
constexpr int64_t kSliceNs = 100'000'000;

// A deadline that only looks.
constexpr int64_t kPast = 1;

// Returns the oldest event, or nothing if none comes by the deadline or within kSliceNs, or if a
// signal comes. It waits in poll(2), which a signal ends, unlike the C ABI's own wait. Must not be
// called with Python's lock.
std::optional<Event> AwaitEvent(const Queue& queue, int64_t deadline_ns) {
  constexpr int64_t kMillisecond = 1'000'000;
  const int64_t slice = std::clamp<int64_t>(deadline_ns - waybill_now_ns(), 0, kSliceNs);
  pollfd waited = {.fd = waybill_queue_fd(queue.get()), .events = POLLIN, .revents = 0};
  const int ready = poll(&waited, 1, static_cast<int>((slice + kMillisecond - 1) / kMillisecond));
  return ready > 0 ? Wait(queue, kPast) : std::nullopt;
}

// Returns the oldest event, or nothing if none comes by the deadline; without one it only looks. It
// handles signals meanwhile, and throws what their handlers raise (KeyboardInterrupt).
std::optional<Event> Take(const KeptQueue& queue, std::optional<int64_t> deadline) {
  const int64_t deadline_ns = deadline.value_or(0);
  if (deadline_ns <= waybill_now_ns()) return Wait(queue.owner(), kPast);
  while (true) {
    std::optional<Event> event;
    {
      const abi3::Unlocked unlocked;
      event = AwaitEvent(queue.owner(), deadline_ns);
    }
    if (event) return event;
    if (PyErr_CheckSignals() != 0) throw abi3::PythonError();
    if (waybill_now_ns() >= deadline_ns) return std::nullopt;
  }
}

abi3::Object ErrorOf(const Event& event) {
  if (event->error == nullptr) return abi3::None();
  return ToException(waybill_error_code(event->error), waybill_error_scope(event->error),
                     waybill_error_message(event->error));
}

}  // namespace

void AddQueue(abi3::Module& module) {
  module.Constant("SLICE_NS", kSliceNs);
  // Only its last reference closes it, so whoever waits for its descriptor keeps it open.
  abi3::Class<KeptQueue>(module, "Queue")
      .Init<[](const KeptContext& context) {
        return std::make_unique<KeptQueue>(Make<Queue>(waybill_queue_create, context.get()));
      },
            "context">()
      .Method<"take", &Take, "deadline_ns">()
      .Method<"post",
              [](const KeptQueue& self, uint64_t token) {
                Call(waybill_queue_post, self.get(), token);
              },
              "token">()
      .Property<"handle", &HandleOf<KeptQueue>>()
      .Method<"fileno", [](const KeptQueue& self) { return waybill_queue_fd(self.get()); }>();
  abi3::Class<Event>(module, "Event")
      .Property<"kind", [](const Event& self) { return self->kind; }>()
      .Property<"token", [](const Event& self) { return self->token; }>()
      .Property<"version", [](const Event& self) { return self->version; }>()
      .Property<"status", [](const Event& self) { return self->status; }>()
      .Property<"answer_wanted", [](const Event& self) { return self->answer_wanted != 0; }>()
      .Property<"pause_ns", [](const Event& self) { return self->pause_ns; }>()
      .Property<"unchanged", [](const Event& self) { return self->unchanged != 0; }>()
      .Property<"committed", [](const Event& self) { return self->committed != 0; }>()
      .Property<"group", &Event::group>()
      .Property<"error", &ErrorOf>()
      .MethodUnlocked<"accept",
                      [](const Event& self) {
                        Call(waybill_update_accept, self->update, self->kind);
                      }>()
      .MethodUnlocked<"refuse",
                      [](const Event& self, const std::string& reason) {
                        Call(waybill_update_refuse, self->update, self->kind, reason.c_str());
                      },
                      "reason">();
}

}  // namespace waybill::python
