// What this host's memory can do: the bounds that measured rates are set against.

#ifndef KERNELS_MEMORY_BOUND_H_
#define KERNELS_MEMORY_BOUND_H_

#include <cstddef>

namespace waybill::kernels {

// Bytes per second of std::memcpy from `src` to `dst`, the best of `repeats` runs, each by
// `threads` threads with equal parts. Touches both arrays first, so page faults are not counted.
double MeasureCopyRate(void* dst, const void* src, size_t size_bytes, size_t threads,
                       size_t repeats);

// Bytes per second at which `threads` threads read `src`, the best of `repeats` runs.
double MeasureReadRate(const void* src, size_t size_bytes, size_t threads, size_t repeats);

}  // namespace waybill::kernels

#endif  // KERNELS_MEMORY_BOUND_H_
