// SPDX-License-Identifier: Apache-2.0

// Measures calls of the C ABI that only hand something to another thread: medians.
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "capi/testing/job.h"

namespace waybill::capi {
namespace {

constexpr int kRounds = 2000;

// CLOCK_MONOTONIC around one call costs some 50 ns: it is measured too.
int64_t Nanoseconds(const std::function<void()>& call) {
  const int64_t begin = waybill_now_ns();
  call();
  return waybill_now_ns() - begin;
}

void Print(const char* name, std::vector<int64_t> ns) {
  std::sort(ns.begin(), ns.end());
  const auto at = [&](double q) { return ns[static_cast<size_t>(q * double(ns.size() - 1))]; };
  std::printf("%-28s %8.2f us median, %8.2f us p99\n", name, double(at(0.5)) / 1e3,
              double(at(0.99)) / 1e3);
}

void Measure(const char* name, const std::function<void()>& call) {
  std::vector<int64_t> ns;
  ns.reserve(kRounds);
  for (int i = 0; i < kRounds; ++i) ns.push_back(Nanoseconds(call));
  Print(name, ns);
}

// The lower bound of a call that hands something to a sleeping thread: the wake alone.
class Sleeper {
 public:
  ~Sleeper() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void Wake() {
    {
      const std::lock_guard lock(mutex_);
      ++woken_;
    }
    changed_.notify_one();
  }

 private:
  void Main() {
    std::unique_lock lock(mutex_);
    for (uint64_t seen = 0; !ending_; seen = woken_) {
      changed_.wait(lock, [&] { return ending_ || woken_ != seen; });
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t woken_ = 0;
  bool ending_ = false;
  std::thread thread_{[this] { Main(); }};
};

void Run() {
  Job job({.ask = WAYBILL_ASK_PREPARE});
  job.Join();
  waybill_event_t event = WAYBILL_EVENT_INIT;
  waybill_worker_state_t state = WAYBILL_WORKER_STATE_INIT;
  bool right = true;
  Measure("(the clock)", [] {});
  Measure("waybill_queue_post", [&] { right &= !waybill_queue_post(job.queue, 1, nullptr); });
  Measure("waybill_queue_poll", [&] { right &= !waybill_queue_poll(job.queue, &event, nullptr); });
  Measure("waybill_worker_state",
          [&] { right &= !waybill_worker_state(job.workers[0], &state, nullptr); });
  std::vector<int64_t> publish, accept, wake;
  Sleeper sleeper;
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  constexpr uint64_t kUpdates = 600;
  for (options.version = 1; options.version <= kUpdates; ++options.version) {
    // Every other time, so that neither finds the other core awake because of the other.
    if (options.version % 2 == 0) wake.push_back(Nanoseconds([&] { sleeper.Wake(); }));
    const int64_t took = Nanoseconds(
        [&] { right &= !waybill_trainer_publish(job.trainers[0], &options, 1, nullptr, nullptr); });
    if (options.version % 2 == 1) publish.push_back(took);
    waybill_event_t asked = job.Await(WAYBILL_EVENT_PREPARE);
    accept.push_back(Nanoseconds(
        [&] { right &= !waybill_update_accept(asked.update, WAYBILL_EVENT_PREPARE, nullptr); }));
    waybill_event_release(&asked);
    job.AwaitCommitted(options.version);
  }
  Print("(waking a thread)", wake);
  Print("waybill_trainer_publish", publish);
  Print("waybill_update_accept", accept);
  std::printf("%s\n", right ? "every call was WAYBILL_OK" : "A CALL FAILED");
}

}  // namespace
}  // namespace waybill::capi

int main() { waybill::capi::Run(); }
