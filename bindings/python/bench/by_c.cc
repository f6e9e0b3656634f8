// SPDX-License-Identifier: Apache-2.0

// A publish as a C program does it, for the benchmark that measures what Python adds.
#include <bit>
#include <chrono>
#include <cstdint>

#include "bindings/python/abi3/module.h"
#include "capi/waybill.hpp"

namespace {

// Publishes, waits until the version is SENT and its group has shown it. Returns the microseconds
// until the event that says so was taken from the queue.
double Publish(uintptr_t trainer, uintptr_t queue, uint64_t version, int64_t patience_ns) {
  const auto begin = std::chrono::steady_clock::now();
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  options.version = version;
  options.deadline_ns = waybill_now_ns() + patience_ns;
  waybill_update_t* update = nullptr;
  waybill::Call(waybill_trainer_publish, std::bit_cast<waybill_trainer_t*>(trainer), &options, 1,
                &update);
  const waybill::Update owned(update);
  double sent_us = 0;
  for (int taken = 0; taken < 2; ++taken) {  // In either order.
    waybill_event_t event = WAYBILL_EVENT_INIT;
    waybill::Call(waybill_queue_wait, std::bit_cast<waybill_queue_t*>(queue), options.deadline_ns,
                  &event);
    if (event.kind == WAYBILL_EVENT_PUBLISHED) {
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      sent_us = took.count();
    }
    waybill_event_release(&event);
  }
  return sent_us;
}

}  // namespace

WAYBILL_ABI3_MODULE(by_c, "by_c", module) {
  module.FunctionUnlocked<"publish", &Publish, "trainer", "queue", "version", "patience_ns">();
}
