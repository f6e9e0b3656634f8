// SPDX-License-Identifier: Apache-2.0

// Counts this program's allocations by replacing operator new. It would displace the operator new
// of sanitizers, so tests that use it have the tag no-sanitizer.
#ifndef WAYBILL_TESTING_ALLOCATIONS_ALLOCATIONS_H_
#define WAYBILL_TESTING_ALLOCATIONS_ALLOCATIONS_H_

#include <cstdint>

namespace waybill {

// Starts to count, on all threads.
void BeginCountingAllocations();
// Returns the number of allocations since then.
uint64_t EndCountingAllocations();

}  // namespace waybill

#endif  // WAYBILL_TESTING_ALLOCATIONS_ALLOCATIONS_H_
