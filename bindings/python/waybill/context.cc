// Contexts, and the log's way to Python.
#include <atomic>
#include <chrono>
#include <thread>

#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

// Threads of the library must not ask for Python's lock once the interpreter goes down: they would
// be ended where they stand.
std::atomic<bool> g_over = false;
std::atomic<int> g_logging = 0;

// `user`: what Python calls with level and line. What that raises is nobody's: it is shown as
// exceptions of destructors are.
void Log(void* user, uint32_t level, const char* line) {
  ++g_logging;
  if (!g_over) {
    const py::gil_scoped_acquire locked;
    try {
      (*static_cast<py::object*>(user))(level, line);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a line of waybill's log");
    }
  }
  --g_logging;
}

// At exit, while the interpreter still is whole.
void EndLogging() {
  const py::gil_scoped_release unlocked;  // Those who log now need it.
  g_over = true;
  while (g_logging != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::unique_ptr<KeptContext> MakeContext(py::object log) {
  waybill_context_options_t options = WAYBILL_CONTEXT_OPTIONS_INIT;
  options.log_sink = Log;
  // Never destroyed: the context's last child may outlive everything else.
  options.log_user = new py::object(std::move(log));
  return std::make_unique<KeptContext>(Make<Context>(waybill_context_create, &options));
}

}  // namespace

void AddContext(py::module_& module) {
  py::module_::import("atexit").attr("register")(py::cpp_function(&EndLogging));
  py::class_<KeptContext>(module, "Context")
      .def(py::init(&MakeContext), py::arg("log"))
      .def("describe", [](const KeptContext& self) {
        const py::gil_scoped_release unlocked;
        return Bytes(waybill_context_describe, self.get());
      });
}

}  // namespace waybill::python
