// SPDX-License-Identifier: Apache-2.0

#include "core/control/engine_thread.h"

#include <algorithm>
#include <future>
#include <utility>

#include "core/base/steady_now.h"

namespace waybill {

EngineThread::EngineThread(Fabric* fabric, std::function<absl::Time()> step)
    : fabric_(*fabric), step_(std::move(step)), thread_([this] { Main(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  fabric_.Wake();
  thread_.join();
}

void EngineThread::Do(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  fabric_.Wake();
}

void EngineThread::DoAndWait(const std::function<void()>& task) {
  std::promise<void> done;
  Do([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

// Returns false when the thread has to end.
bool EngineThread::RunTasks() {
  std::vector<std::function<void()>> tasks;
  bool ending;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
    ending = ending_;
  }
  for (const auto& task : tasks) task();
  return !ending;
}

void EngineThread::Main() {
  // The longest sleep: deadlines within the engine are checked at least this often.
  constexpr absl::Duration kLongestWait = absl::Milliseconds(100);
  while (RunTasks()) {
    const absl::Time next = step_();
    fabric_.Wait(std::min(next, SteadyNow() + kLongestWait));
  }
}

}  // namespace waybill
