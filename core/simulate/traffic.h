// SPDX-License-Identifier: Apache-2.0

// What an update moves between which ranks, without the routes: all that a simulation needs of a
// plan. This is the only file of the package that looks into a Plan.
#ifndef WAYBILL_CORE_SIMULATE_TRAFFIC_H_
#define WAYBILL_CORE_SIMULATE_TRAFFIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "core/tensor/manifest.h"

namespace waybill::simulate {

// What goes from one trainer to one worker. Bytes are counted at the worker, except in *_read.
struct PairTraffic {
  uint32_t trainer = 0;
  uint32_t worker = 0;
  uint64_t bytes = 0;
  uint64_t routes = 0;
  uint64_t writes = 0;
  // The part that a network cannot read from the tensors: it is packed, cast or quantised first.
  uint64_t staged_bytes = 0;
  // What is read of the trainer's tensors, by what is done with it. What is copied is also what a
  // network could read from the tensors.
  uint64_t copied_read = 0;
  uint64_t packed_read = 0;  // Of what is copied: that which is staged.
  uint64_t transposed_read = 0;
  uint64_t cast_read = 0;
  uint64_t quantised_read = 0;
};

struct Traffic {
  std::vector<PairTraffic> pairs;  // By trainer, then by worker. Each has bytes.
  // The traffic that workers relay, in the order of the senders. `trainer` is the rank of the
  // worker that sends.
  std::vector<PairTraffic> relays;
  std::vector<uint64_t> trainer_held_bytes;
  std::vector<uint64_t> worker_held_bytes;
  // Messages with maxima of blocks that shards cut, and the steps that they take one after another.
  uint64_t maxima = 0;
  uint64_t maxima_messages = 0;
  uint32_t maxima_steps = 0;
  double planned_ratio = 1;  // The plan's busiest rank over its lower bound.

  uint32_t trainers() const { return static_cast<uint32_t>(trainer_held_bytes.size()); }
  uint32_t workers() const { return static_cast<uint32_t>(worker_held_bytes.size()); }
  uint64_t total_bytes() const;  // What workers receive.
  // Returns what goes between these ranks, or null if nothing does.
  const PairTraffic* Find(uint32_t trainer, uint32_t worker) const;
  std::vector<uint64_t> trainer_bytes() const;  // By rank: what it sends.
  std::vector<uint64_t> worker_bytes() const;   // By rank: what it receives.
};

// Index is rank in all of them.
Traffic TrafficOf(const Plan& plan, std::vector<uint64_t> trainer_held_bytes,
                  std::vector<uint64_t> worker_held_bytes);

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_TRAFFIC_H_
