// SPDX-License-Identifier: Apache-2.0

// Who computes: the threads of ranks, on the cores of hosts or on GPUs.
#ifndef WAYBILL_CORE_SIMULATE_PROCESSORS_H_
#define WAYBILL_CORE_SIMULATE_PROCESSORS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "core/simulate/virtual_time.h"

namespace waybill::simulate {

// The cores of a host. Jobs run to their end, and threads take the cores in turn.
class Cores {
 public:
  // `count` 0: as many as there are threads.
  Cores(VirtualTime* time, uint32_t count) : time_(*time), count_(count) {}

  double busy() const { return busy_; }  // Seconds, summed over the cores.
  uint32_t count() const { return count_; }

 private:
  friend class Threads;

  void Run();

  VirtualTime& time_;
  const uint32_t count_;
  uint32_t running_ = 0;
  double busy_ = 0;
  std::deque<class Threads*> ready_;
};

// The threads of one rank that do one kind of work, or a GPU's stream of kernels. Jobs begin in the
// order of their arrival, but those of RunLast() behind all others.
class Threads {
 public:
  using Done = std::function<void()>;

  // The cores outlive the threads. `slowdown`: how many times as long each job takes.
  Threads(Cores* cores, uint32_t count, double slowdown)
      : cores_(*cores), idle_(count), slowdown_(slowdown) {}
  Threads(const Threads&) = delete;

  void Run(double seconds, Done done) { Add(first_, seconds, std::move(done)); }
  void RunLast(double seconds, Done done) { Add(last_, seconds, std::move(done)); }

  double busy() const { return busy_; }  // Seconds, summed over the threads.

 private:
  friend class Cores;

  struct Job {
    double seconds;
    Done done;
  };

  void Add(std::deque<Job>& jobs, double seconds, Done done);
  bool ready() const { return idle_ > 0 && !(first_.empty() && last_.empty()); }

  Cores& cores_;
  uint32_t idle_;
  const double slowdown_;
  double busy_ = 0;
  bool queued_ = false;  // Among those that are ready.
  std::deque<Job> first_;
  std::deque<Job> last_;
};

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_PROCESSORS_H_
