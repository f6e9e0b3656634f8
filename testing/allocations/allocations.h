// Counts what this program allocates: who links this gets another operator new. Not for sanitizers,
// whose own it would displace: tests that use it have the tag no-sanitizer.
#ifndef WAYBILL_TESTING_ALLOCATIONS_ALLOCATIONS_H_
#define WAYBILL_TESTING_ALLOCATIONS_ALLOCATIONS_H_

#include <cstdint>

namespace waybill {

// From now on, on any thread.
void BeginCountingAllocations();
// How many there were since.
uint64_t EndCountingAllocations();

}  // namespace waybill

#endif  // WAYBILL_TESTING_ALLOCATIONS_ALLOCATIONS_H_
