// SPDX-License-Identifier: Apache-2.0

// The progress thread, on which a rank and its fabric live.
#ifndef WAYBILL_CORE_CONTROL_ENGINE_THREAD_H_
#define WAYBILL_CORE_CONTROL_ENGINE_THREAD_H_

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/fabric.h"

namespace waybill {

// Runs the tasks of other threads, then `step`, whenever the fabric may have events. Thread-safe.
class EngineThread {
 public:
  // `step` returns the time by which it must be called again, even without events. `fabric` must
  // outlive the thread.
  EngineThread(Fabric* fabric, std::function<absl::Time()> step);
  // Runs the tasks that were added before, then ends the thread.
  ~EngineThread();

  // Adds a task, which runs on the thread, in order.
  void Do(std::function<void()> task);
  // Adds a task and waits until it has run. Must not be called on the thread itself.
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
