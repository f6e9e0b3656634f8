// SPDX-License-Identifier: Apache-2.0

// The planted bugs (*.patch), and the switch that turns on one of them.
//
// Only copies of the product's sources ask Planted(): plant.py makes them for mutation_test.
#ifndef WAYBILL_TESTING_SIMULATION_PLANTED_BUG_H_
#define WAYBILL_TESTING_SIMULATION_PLANTED_BUG_H_

#include <cstdint>

namespace waybill {

enum class Bug : uint8_t {
  kNone,
#define WAYBILL_BUG(name, first_seed) k##name,
#include "testing/simulation/planted/bugs.inc"
#undef WAYBILL_BUG
};

struct PlantedBug {
  const char* name;
  Bug bug;
  uint64_t first_seed;  // The seed at which the search for it begins.
};

inline constexpr PlantedBug kPlantedBugs[] = {
#define WAYBILL_BUG(name, first_seed) {#name, Bug::k##name, first_seed},
#include "testing/simulation/planted/bugs.inc"
#undef WAYBILL_BUG
};

// The bug that is turned on.
inline Bug g_bug = Bug::kNone;

inline bool Planted(Bug bug) { return g_bug == bug; }

}  // namespace waybill

#endif  // WAYBILL_TESTING_SIMULATION_PLANTED_BUG_H_
