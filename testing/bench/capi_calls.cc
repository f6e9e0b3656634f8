// What calls of the C ABI take their caller that only hand something over: medians.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
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
  for (int i = 0; i < kRounds; ++i) ns.push_back(Nanoseconds(call));
  Print(name, ns);
}

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
  std::vector<int64_t> publish, accept;
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  constexpr uint64_t kUpdates = 300;
  for (options.version = 1; options.version <= kUpdates; ++options.version) {
    publish.push_back(Nanoseconds([&] {
      right &= !waybill_trainer_publish(job.trainers[0], &options, 1, nullptr, nullptr);
    }));
    waybill_event_t asked = job.Await(WAYBILL_EVENT_PREPARE);
    accept.push_back(Nanoseconds(
        [&] { right &= !waybill_update_accept(asked.update, WAYBILL_EVENT_PREPARE, nullptr); }));
    waybill_event_release(&asked);
    job.AwaitCommitted(options.version);
  }
  Print("waybill_trainer_publish", publish);
  Print("waybill_update_accept", accept);
  std::printf("%s\n", right ? "every call was WAYBILL_OK" : "A CALL FAILED");
}

}  // namespace
}  // namespace waybill::capi

int main() { waybill::capi::Run(); }
