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

#include "absl/status/statusor.h"
#include "core/protocol/update.h"
#include "core/simulate/hardware.h"
#include "core/simulate/result.h"
#include "core/simulate/traffic.h"

namespace waybill::simulate {

struct SimulateOptions {
  Mode mode = Mode::kShadow;
  bool digests = true;
  // A small job is simulated chunk by chunk. A larger one is simulated in about so many pieces, of
  // which each stands for several chunks; there is at least one for each pair of ranks.
  uint64_t most_pieces = 100'000;
};

// Deterministic; opens nothing. Takes seconds for hundreds of ranks.
//
// kInvalidArgument: what CheckHardware() refuses, or a worker that receives nothing. Otherwise
// whatever the protocol says of an update that did not commit.
absl::StatusOr<Result> Simulate(const Traffic& traffic, const Hardware& hardware,
                                const SimulateOptions& options = {});

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_SIMULATE_H_
