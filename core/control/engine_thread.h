// SPDX-License-Identifier: Apache-2.0

// The progress thread: the one on which a rank and its fabric live.
#ifndef WAYBILL_CORE_CONTROL_ENGINE_THREAD_H_
#define WAYBILL_CORE_CONTROL_ENGINE_THREAD_H_

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/fabric.h"

namespace waybill {

// Runs what others ask for, then `step`, whenever the fabric may have something. Thread-safe.
class EngineThread {
 public:
  // `step` returns when it has to be called next, whatever the fabric says. `fabric` outlives this.
  EngineThread(Fabric* fabric, std::function<absl::Time()> step);
  // Runs what was asked for before, then ends.
  ~EngineThread();

  // Runs `task` soon, on the thread, in order.
  void Do(std::function<void()> task);
  // The same, and waits for its end. Not from the thread itself.
  void DoAndWait(const std::function<void()>& task);

 private:
  void Main();
  bool RunTasks();

  Fabric& fabric_;
  const std::function<absl::Time()> step_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_ENGINE_THREAD_H_
