// SPDX-License-Identifier: Apache-2.0

// A pool of threads that run numbered tasks.
#ifndef WAYBILL_CORE_STAGE_WORK_POOL_H_
#define WAYBILL_CORE_STAGE_WORK_POOL_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace waybill {

// Queues of batches. A batch is `task_count` calls of `work(index)`, in any order, on any of the
// threads. Thread-safe. The queues grow to the most batches that are ever queued at a time, and
// do not allocate afterwards.
class WorkPool {
 public:
  // One kind of task. A batch outlives its time in the queue: cancel it before it ends.
  class Batch {
   public:
    // `work` runs a task. `finished` is called on the thread that ran the batch's last task.
    Batch(std::function<void(uint32_t index)> work, std::function<void()> finished)
        : work_(std::move(work)), finished_(std::move(finished)) {}

   private:
    friend class WorkPool;
    std::function<void(uint32_t index)> work_;
    std::function<void()> finished_;
    uint32_t task_count_ = 0;  // Guarded by the pool's mutex, as is the rest.
    uint32_t next_ = 0;        // The next task to begin.
    uint32_t done_ = 0;
    uint32_t active_ = 0;  // The number of threads that run a task of the batch.
    bool cancelled_ = false;
  };

  // With no threads, Run() does the work itself before it returns.
  explicit WorkPool(uint32_t thread_count);
  // Waits for the tasks that run, and drops the others.
  ~WorkPool();

  // Queues tasks [0, task_count) of a batch that is not queued. With no tasks the batch is finished
  // at once.
  void Run(Batch& batch, uint32_t task_count);
  // The same, but tasks of Run() go first, also those that are queued later.
  void RunLast(Batch& batch, uint32_t task_count);

  // Drops the tasks of the batch that have not begun, and waits for those that have. `finished` is
  // not called if any task was dropped.
  void Cancel(Batch& batch);

 private:
  void ThreadMain();
  void Run(Batch& batch, uint32_t task_count, std::vector<Batch*>& queue);
  Batch* Next() const;
  void WorkOn(Batch& batch, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Batch*> queue_;
  std::vector<Batch*> last_queue_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_WORK_POOL_H_
