// SPDX-License-Identifier: Apache-2.0

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
    const abi3::Locked locked;
    const auto& sink = *static_cast<abi3::Object*>(user);
    try {
      sink(abi3::ToPython(level), abi3::ToPython(line));
    } catch (const abi3::PythonError&) {
      PyErr_WriteUnraisable(sink.get());
    }
  }
  --g_logging;
}

// At exit, while the interpreter still is whole.
void EndLogging() {
  const abi3::Unlocked unlocked;  // Those who log now need it.
  g_over = true;
  while (g_logging != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::unique_ptr<KeptContext> MakeContext(abi3::Object log) {
  waybill_context_options_t options = WAYBILL_CONTEXT_OPTIONS_INIT;
  options.log_sink = Log;
  // Never destroyed: the context's last child may outlive everything else.
  options.log_user = new abi3::Object(std::move(log));
  return std::make_unique<KeptContext>(Make<Context>(waybill_context_create, &options));
}

}  // namespace

void AddContext(abi3::Module& module) {
  module.Function<"end_logging", &EndLogging>();
  abi3::Object::Import("atexit").Attribute("register")(module.Get("end_logging"));
  abi3::Class<KeptContext>(module, "Context")
      .Init<&MakeContext, "log">()
      .MethodUnlocked<"describe", [](const KeptContext& self) {
        return Bytes(waybill_context_describe, self.get());
      }>();
}

}  // namespace waybill::python
