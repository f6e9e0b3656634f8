// SPDX-License-Identifier: Apache-2.0

// Predicts an update: runs the production protocol on a virtual clock, with a model of the hardware
// in place of the engine.
//
// The controller, the sessions of all ranks, the send schedules and the arrival gates are those of
// core/protocol. The ranks join with skeleton manifests, in which each pair of ranks that exchanges
// bytes shares one tensor, so that the controller has the real job's lanes and rounds without its
// routes.
#ifndef WAYBILL_CORE_SIMULATE_SIMULATE_H_
#define WAYBILL_CORE_SIMULATE_SIMULATE_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "core/protocol/update.h"
#include "core/simulate/hardware.h"
#include "core/simulate/result.h"
#include "core/simulate/traffic.h"

namespace waybill::simulate {

struct SimulateOptions {
  Mode mode = Mode::kShadow;
  bool digests = true;
  // Trainers copy their weights when they publish, and send from the copy.
  bool images = false;
  // If set, with images: the part of the elements that changed since the version before, of which
  // all workers have every byte, from 0 to 0.5. What is quantised on the way or relayed travels
  // whole, and so does everything without digests, in place, or on one host without TCP.
  std::optional<double> changed = {};
  // A small job is simulated chunk by chunk. A larger one is simulated in about so many pieces, of
  // which each stands for several chunks; there is at least one for each pair of ranks.
  uint64_t most_pieces = 100'000;
};

// Deterministic; opens nothing. Takes seconds for hundreds of ranks.
//
// kInvalidArgument: what CheckHardware() refuses, a worker that receives nothing, or `changed`
// where trainers or workers have their weights on GPUs, on which nothing is encoded. Otherwise
// whatever the protocol says of an update that did not commit.
absl::StatusOr<Result> Simulate(const Traffic& traffic, const Hardware& hardware,
                                const SimulateOptions& options = {});

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_SIMULATE_H_
