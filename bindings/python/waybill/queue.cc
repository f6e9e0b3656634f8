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

// Returns the oldest event, or nothing if none comes by the deadline. It handles signals meanwhile,
// and throws what their handlers raise (KeyboardInterrupt).
std::optional<Event> Take(const KeptQueue& queue, int64_t deadline_ns) {
  if (deadline_ns <= waybill_now_ns()) return Wait(queue.owner(), kPast);
  while (true) {
    std::optional<Event> event;
    {
      const py::gil_scoped_release unlocked;
      event = AwaitEvent(queue.owner(), deadline_ns);
    }
    if (event) return event;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (waybill_now_ns() >= deadline_ns) return std::nullopt;
  }
}

py::object ErrorOf(const Event& event) {
  if (event->error == nullptr) return py::none();
  return ToException(waybill_error_code(event->error), waybill_error_scope(event->error),
                     waybill_error_message(event->error));
}

}  // namespace

void AddQueue(py::module_& module) {
  module.attr("SLICE_NS") = kSliceNs;
  // Only its last reference closes it, so whoever waits for its descriptor keeps it open.
  py::class_<KeptQueue>(module, "Queue")
      .def(py::init([](const KeptContext& context) {
             return std::make_unique<KeptQueue>(Make<Queue>(waybill_queue_create, context.get()));
           }),
           py::arg("context"))
      .def("take", &Take, py::arg("deadline_ns") = 0)
      .def(
          "post",
          [](const KeptQueue& self, uint64_t token) {
            Call(waybill_queue_post, self.get(), token);
          },
          py::arg("token"))
      .def_property_readonly("handle", &HandleOf<KeptQueue>)
      .def("fileno", [](const KeptQueue& self) { return waybill_queue_fd(self.get()); });
  py::class_<Event>(module, "Event")
      .def_property_readonly("kind", [](const Event& self) { return self->kind; })
      .def_property_readonly("token", [](const Event& self) { return self->token; })
      .def_property_readonly("version", [](const Event& self) { return self->version; })
      .def_property_readonly("status", [](const Event& self) { return self->status; })
      .def_property_readonly("answer_wanted",
                             [](const Event& self) { return self->answer_wanted != 0; })
      .def_property_readonly("pause_ns", [](const Event& self) { return self->pause_ns; })
      .def_property_readonly("group", &Event::group)
      .def_property_readonly("error", &ErrorOf)
      .def(
          "accept",
          [](const Event& self) { Call(waybill_update_accept, self->update, self->kind); },
          Unlocked())
      .def(
          "refuse",
          [](const Event& self, const std::string& reason) {
            Call(waybill_update_refuse, self->update, self->kind, reason.c_str());
          },
          py::arg("reason"), Unlocked());
}

}  // namespace waybill::python
