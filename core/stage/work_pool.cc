// SPDX-License-Identifier: Apache-2.0

#include "core/stage/work_pool.h"

#include <algorithm>

namespace waybill {

WorkPool::WorkPool(uint32_t thread_count) {
  queue_.reserve(64);
  last_queue_.reserve(64);
  threads_.reserve(thread_count);
  for (uint32_t i = 0; i < thread_count; ++i) threads_.emplace_back([this] { ThreadMain(); });
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkPool::Run(Batch& batch, uint32_t task_count) { Run(batch, task_count, queue_); }

void WorkPool::RunLast(Batch& batch, uint32_t task_count) { Run(batch, task_count, last_queue_); }

void WorkPool::Run(Batch& batch, uint32_t task_count, std::vector<Batch*>& queue) {
  if (task_count == 0) {
    batch.finished_();
    return;
  }
  std::unique_lock lock(mutex_);
  batch.task_count_ = task_count;
  batch.next_ = 0;
  batch.done_ = 0;
  batch.cancelled_ = false;
  queue.push_back(&batch);
  if (!threads_.empty()) {
    changed_.notify_all();
    return;
  }
  while (Batch* next = Next()) WorkOn(*next, lock);
}

WorkPool::Batch* WorkPool::Next() const {
  if (!queue_.empty()) return queue_.front();
  return last_queue_.empty() ? nullptr : last_queue_.front();
}

void WorkPool::Cancel(Batch& batch) {
  std::unique_lock lock(mutex_);
  std::erase(queue_, &batch);
  std::erase(last_queue_, &batch);
  batch.cancelled_ = true;
  changed_.wait(lock, [&] { return batch.active_ == 0; });
}

void WorkPool::ThreadMain() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || Next() != nullptr; });
    if (ending_) return;
    WorkOn(*Next(), lock);
  }
}

// Does one task of a queued batch. The lock is held before and after.
void WorkPool::WorkOn(Batch& batch, std::unique_lock<std::mutex>& lock) {
  const uint32_t index = batch.next_++;
  ++batch.active_;
  if (batch.next_ == batch.task_count_) {
    std::erase(queue_, &batch);
    std::erase(last_queue_, &batch);
  }
  lock.unlock();
  batch.work_(index);
  lock.lock();
  if (++batch.done_ == batch.task_count_ && !batch.cancelled_) {
    lock.unlock();
    batch.finished_();
    lock.lock();
  }
  if (--batch.active_ == 0) changed_.notify_all();
}

}  // namespace waybill
