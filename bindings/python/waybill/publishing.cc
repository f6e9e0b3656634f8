// A publish whose caller waits, in as few steps as there can be: while the core works, other
// threads take the caches, and each step of Python's that comes before or after costs some
// microseconds.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

constexpr double kNsPerSecond = 1e9;

// As waybill.pump.deadline_ns() has it.
int64_t DeadlineNs(const std::optional<double>& seconds) {
  if (!seconds) return 0;
  constexpr double kMost = 1e9;  // Some thirty years.
  if (std::isnan(*seconds)) throw py::value_error("deadline is no number");
  return waybill_now_ns() +
         static_cast<int64_t>(std::clamp(*seconds, -kMost, kMost) * kNsPerSecond);
}

waybill_publish_options_t OptionsOf(uint64_t version, bool digests, bool fail_on_nonfinite,
                                    uintptr_t after_event) {
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  options.version = version;
  options.no_digests = digests ? 0 : 1;
  options.fail_on_nonfinite = fail_on_nonfinite ? 1 : 0;
  options.after_event = std::bit_cast<void*>(after_event);
  return options;
}

std::unique_ptr<KeptUpdate> Publish(const KeptTrainer& self, uint64_t version, int64_t deadline_ns,
                                    bool digests, bool fail_on_nonfinite, uintptr_t after_event,
                                    uint64_t token) {
  waybill_publish_options_t options = OptionsOf(version, digests, fail_on_nonfinite, after_event);
  options.deadline_ns = deadline_ns;
  return std::make_unique<KeptUpdate>(
      Make<Update>(waybill_trainer_publish, self.get(), &options, token));
}

// For one publish at a time: that of the thread which leads the queue.
class Publisher {
 public:
  // Both outlive it.
  Publisher(const KeptTrainer& trainer, RankQueue& queue) : trainer_(trainer), queue_(queue) {}
  Publisher(const Publisher&) = delete;

  // Leads, and begins to send. Returns the call's token; 0: another thread leads.
  uint64_t Begin(uint64_t version, const std::optional<double>& deadline_seconds, bool digests,
                 bool fail_on_nonfinite, uintptr_t after_event) {
    waybill_publish_options_t options = OptionsOf(version, digests, fail_on_nonfinite, after_event);
    options.deadline_ns = DeadlineNs(deadline_seconds);
    if (!queue_.TryToLead()) return 0;
    leads_ = true;
    const uint64_t token = queue_.NewToken();
    try {  // With Python's lock: it only enqueues.
      update_ = Make<Update>(waybill_trainer_publish, trainer_.get(), &options, token);
    } catch (...) {
      Resign();
      throw;
    }
    return token;
  }

  // Waits for the event. Where it is the next one, and all is well: resigns, and returns nothing.
  // Else what came.
  std::optional<Event> AwaitSent(uint64_t token) {
    while (true) {
      std::optional<Event> event;
      {
        const py::gil_scoped_release unlocked;
        event = AwaitEvent(queue_.owner(), std::numeric_limits<int64_t>::max());
      }
      if (event && ((*event)->token != token || (*event)->status != WAYBILL_OK)) return event;
      if (event) {
        Resign();
        return std::nullopt;
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }

  // What was begun, for who waits in another way now.
  std::unique_ptr<KeptUpdate> TakeUpdate() {
    return std::make_unique<KeptUpdate>(std::move(update_));
  }

  // Cancels what was begun, unless that is over.
  void GiveUp() {
    if (!leads_) return;
    if (update_) std::ignore = waybill_update_cancel(update_.get(), nullptr);
    Resign();
  }

  void Resign() {
    update_.reset();
    leads_ = false;
    queue_.Resign();
  }

 private:
  const KeptTrainer& trainer_;
  RankQueue& queue_;
  Update update_;
  bool leads_ = false;
};

}  // namespace

void AddPublishing(py::module_& module, py::class_<KeptTrainer>& trainer) {
  py::class_<KeptUpdate>(module, "Update")
      .def(
          "cancel", [](const KeptUpdate& self) { Call(waybill_update_cancel, self.get()); },
          Unlocked());
  trainer.def("publish", &Publish, py::arg("version"), py::arg("deadline_ns"), py::arg("digests"),
              py::arg("fail_on_nonfinite"), py::arg("after_event"), py::arg("token"), Unlocked());
  py::class_<Publisher>(module, "Publisher")
      .def(py::init<const KeptTrainer&, RankQueue&>(), py::arg("trainer"), py::arg("queue"),
           py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
      .def("begin", &Publisher::Begin, py::arg("version"), py::arg("deadline_seconds"),
           py::arg("digests"), py::arg("fail_on_nonfinite"), py::arg("after_event"))
      .def("await_sent", &Publisher::AwaitSent, py::arg("token"))
      .def("take_update", &Publisher::TakeUpdate)
      .def("give_up", &Publisher::GiveUp)
      .def("resign", &Publisher::Resign);
}

}  // namespace waybill::python
