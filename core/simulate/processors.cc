// SPDX-License-Identifier: Apache-2.0

#include "core/simulate/processors.h"

#include <utility>

namespace waybill::simulate {

void Threads::Add(std::deque<Job>& jobs, double seconds, Done done) {
  jobs.push_back({seconds * slowdown_, std::move(done)});
  if (!queued_ && ready()) {
    queued_ = true;
    cores_.ready_.push_back(this);
  }
  cores_.Run();
}

void Cores::Run() {
  while (!ready_.empty() && (count_ == 0 || running_ < count_)) {
    Threads* threads = ready_.front();
    ready_.pop_front();
    std::deque<Threads::Job>& jobs = threads->first_.empty() ? threads->last_ : threads->first_;
    Threads::Job job = std::move(jobs.front());
    jobs.pop_front();
    --threads->idle_;
    ++running_;
    threads->busy_ += job.seconds;
    busy_ += job.seconds;
    threads->queued_ = threads->ready();
    if (threads->queued_) ready_.push_back(threads);
    time_.After(job.seconds, [this, threads, done = std::move(job.done)] {
      --running_;
      ++threads->idle_;
      if (!threads->queued_ && threads->ready()) {
        threads->queued_ = true;
        ready_.push_back(threads);
      }
      done();
      Run();
    });
  }
}

}  // namespace waybill::simulate
