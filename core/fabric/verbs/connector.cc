// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/connector.h"

namespace waybill::verbs {

Connector::~Connector() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Connector::Connect(uint32_t lane, std::function<absl::Status()> connect,
                        std::function<void()> wake) {
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back({lane, std::move(connect), std::move(wake)});
  }
  changed_.notify_all();
}

void Connector::Forget(uint32_t lane) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::erase_if(tasks_, [lane](const Task& task) { return task.lane == lane; });
  changed_.wait(lock, [&] { return running_ != lane; });
  std::erase_if(done_, [lane](const Done& done) { return done.lane == lane; });
}

std::vector<Connector::Done> Connector::TakeDone() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(done_, {});
}

void Connector::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = task.lane;
    lock.unlock();
    absl::Status status = task.connect();
    lock.lock();
    running_.reset();
    done_.push_back({task.lane, std::move(status)});
    lock.unlock();
    changed_.notify_all();
    task.wake();
    lock.lock();
  }
}

}  // namespace waybill::verbs
