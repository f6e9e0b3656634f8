// SPDX-License-Identifier: Apache-2.0

// The rates of this host's memory, with which measured rates are compared.

#ifndef KERNELS_MEMORY_BOUND_H_
#define KERNELS_MEMORY_BOUND_H_

#include <cstddef>

namespace waybill::kernels {

// Returns the bytes per second of std::memcpy from `src` to `dst`, the best of `repeats` runs, each
// by `threads` threads with equal parts. Touches both arrays first, so page faults are not counted.
double MeasureCopyRate(void* dst, const void* src, size_t size_bytes, size_t threads,
                       size_t repeats);

// Returns the bytes per second at which `threads` threads read `src`, the best of `repeats` runs.
double MeasureReadRate(const void* src, size_t size_bytes, size_t threads, size_t repeats);

}  // namespace waybill::kernels

#endif  // KERNELS_MEMORY_BOUND_H_
