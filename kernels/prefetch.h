// SPDX-License-Identifier: Apache-2.0

// Cache lines, and how to have them before they are waited for.

#ifndef KERNELS_PREFETCH_H_
#define KERNELS_PREFETCH_H_

#include <cstddef>

namespace waybill::kernels {

inline constexpr size_t kCacheLineBytes = 64;

// Begins to load the cache line of `address`, which need not be readable, into the second-level
// cache, which has more requests under way than the first.
inline void PrefetchFar(const void* address) {
  __builtin_prefetch(address, 0, 2);
  // GCC drops calls of a function that only prefetches, as without effect.
  asm volatile("");
}

// How far ahead a long source is asked for. Hardware prefetchers stop at the end of a page, and are
// slow to start in the next one.
inline constexpr size_t kFarBytes = 4096;

// Calls `take(begin, end, ahead)` for the two parts of a long source: the first part prefetches
// what lies kFarBytes ahead, and the last part, which has nothing ahead of it, prefetches nothing.
template <class Take>
void TakeLong(size_t size_bytes, const Take& take) {
  const size_t last = size_bytes < kFarBytes ? 0 : (size_bytes - kFarBytes) / kFarBytes * kFarBytes;
  if (last != 0) take(size_t{0}, last, ptrdiff_t{kFarBytes});
  take(last, size_bytes, ptrdiff_t{0});
}

// Prefetches a line that will be written, so that the core already owns it.
inline void PrefetchForWrite(void* address) {
#if defined(__x86_64__)
  // Every x86-64 processor accepts the instruction, but compilers use it only if told to.
  asm volatile("prefetchw %0" : : "m"(*static_cast<char*>(address)));
#else
  __builtin_prefetch(address, 1);
  asm volatile("");
#endif
}

}  // namespace waybill::kernels

#endif  // KERNELS_PREFETCH_H_
