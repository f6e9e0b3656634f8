// Carries out a rank's calls one after the other, so that the caller need not wait.
#ifndef WAYBILL_CAPI_CALL_THREAD_H_
#define WAYBILL_CAPI_CALL_THREAD_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace waybill::capi {

// Thread-safe. The thread is there from the first call on.
class CallThread {
 public:
  enum class How { kRun, kDropped };
  using Task = std::function<void(How)>;

  ~CallThread() { Close(); }

  // Every task is called once: run in order, or dropped by Close().
  void Do(Task task) {
    std::unique_lock lock(mutex_);
    if (closed_) {
      lock.unlock();
      return task(How::kDropped);
    }
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { Main(); });
    lock.unlock();  // The thread does not wake only to wait for this one.
    changed_.notify_one();
  }

  // Waits for the task that is running, and drops those that are not.
  void Close() {
    std::deque<Task> dropped;
    std::thread thread;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      dropped.swap(tasks_);
      thread = std::move(thread_);
      changed_.notify_one();
    }
    if (thread.joinable()) thread.join();
    for (const Task& task : dropped) task(How::kDropped);
  }

 private:
  void Main() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
      if (closed_) return;
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task(How::kRun);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_CALL_THREAD_H_
