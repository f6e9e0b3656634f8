// Cache lines, and how to have them before they are waited for.

#ifndef KERNELS_PREFETCH_H_
#define KERNELS_PREFETCH_H_

#include <cstddef>

namespace waybill::kernels {

inline constexpr size_t kCacheLineBytes = 64;

// Begins to load the cache line of `address`, which need not be readable.
inline void Prefetch(const void* address) {
  __builtin_prefetch(address);
  // GCC drops calls of a function that only prefetches, as without effect.
  asm volatile("");
}

// Prefetches into the second-level cache, which has more requests under way than the first. For
// bytes that are read after many others.
inline void PrefetchFar(const void* address) {
  __builtin_prefetch(address, 0, 2);
  asm volatile("");
}

// How far ahead a long source is asked for. Hardware prefetchers stop at the end of a page, and are
// slow to start in the next one.
inline constexpr size_t kFarBytes = 4096;

// Returns for how many of its bytes a source is asked for kFarBytes ahead: the last ones have
// nothing ahead of them.
constexpr size_t AskedAhead(size_t size_bytes) {
  return size_bytes < kFarBytes ? 0 : (size_bytes - kFarBytes) / kFarBytes * kFarBytes;
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
