// SPDX-License-Identifier: Apache-2.0

// What a finished simulation means for its reader: bounds, imbalance, warnings, the slowest path.
#ifndef WAYBILL_CORE_SIMULATE_FINDINGS_H_
#define WAYBILL_CORE_SIMULATE_FINDINGS_H_

#include "core/simulate/result.h"
#include "core/simulate/world.h"

namespace waybill::simulate {

// Fills what follows from the ranks, the ports and the traffic.
void AddFindings(const World& world, Result& result);

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_FINDINGS_H_
