// SPDX-License-Identifier: Apache-2.0

// Runs tasks one after the other, on a thread of its own.
#ifndef WAYBILL_CORE_CONTROL_TASK_THREAD_H_
#define WAYBILL_CORE_CONTROL_TASK_THREAD_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace waybill {

class TaskThread {
 public:
  TaskThread() : thread_([this] { Main(); }) {}
  // Drops tasks that have not begun, and waits for a task that has.
  ~TaskThread() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Do(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  void Main() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (ending_) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_TASK_THREAD_H_
