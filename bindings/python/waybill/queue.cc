// Contexts, queues and what comes out of them.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

// Python hears of a signal at least this often. One that this thread gets ends poll(2) at once.
constexpr int64_t kSliceNs = 100'000'000;

// Until there is an event or the deadline is past, whatever signals come meanwhile: their handlers
// run, and what they raise (KeyboardInterrupt) goes out.
void AwaitReadable(int descriptor, int64_t deadline_ns) {
  constexpr int64_t kMillisecond = 1'000'000;
  while (true) {
    const int64_t left = deadline_ns - waybill_now_ns();
    pollfd waited = {.fd = descriptor, .events = POLLIN, .revents = 0};
    int ready = 0;
    {
      const py::gil_scoped_release unlocked;
      const int64_t slice = std::clamp<int64_t>(left, 0, kSliceNs);
      ready = poll(&waited, 1, static_cast<int>((slice + kMillisecond - 1) / kMillisecond));
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (ready > 0 || left <= 0) return;
  }
}

// The oldest event; nothing where none comes by the deadline.
std::optional<Event> Take(const KeptQueue& queue, int64_t deadline_ns) {
  constexpr int64_t kPast = 1;
  while (true) {
    std::optional<Event> event = Wait(queue.owner(), kPast);
    if (event || waybill_now_ns() >= deadline_ns) return event;
    AwaitReadable(waybill_queue_fd(queue.get()), deadline_ns);
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
  py::class_<KeptContext>(module, "Context")
      .def(py::init([] {
        return std::make_unique<KeptContext>(Make<Context>(waybill_context_create, nullptr));
      }))
      .def("describe", [](const KeptContext& self) {
        const py::gil_scoped_release unlocked;
        return Bytes(waybill_context_describe, self.get());
      });
  // It is closed by nothing but its last reference: who waits for its descriptor has one.
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
