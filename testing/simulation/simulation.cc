// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/simulation.h"

#include <cstddef>
#include <utility>

#include "testing/simulation/world.h"

namespace waybill::simulation {

Result RunJob(uint64_t seed, const std::vector<Fault>& faults, Story story) {
  return World(seed, faults, story).Live();
}

std::vector<Fault> Shrink(uint64_t seed, std::vector<Fault> faults) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (size_t i = 0; i < faults.size(); ++i) {
      std::vector<Fault> fewer = faults;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (RunJob(seed, fewer, Story::kNotTold).violation.empty()) continue;
      faults = std::move(fewer);
      smaller = true;
      break;
    }
  }
  return faults;
}

}  // namespace waybill::simulation
