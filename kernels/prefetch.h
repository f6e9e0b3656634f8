// Asking for memory before it is needed.

#ifndef KERNELS_PREFETCH_H_
#define KERNELS_PREFETCH_H_

namespace waybill::kernels {

// Begins to load the cache line of `address`, which need not be one that may be read.
inline void Prefetch(const void* address) {
  __builtin_prefetch(address);
  // GCC takes a function that only prefetches for one without effect, and drops calls to it.
  asm volatile("");
}

// The same as far as the second-level cache: what is read after much else.
inline void PrefetchFar(const void* address) {
  __builtin_prefetch(address, 0, 2);
  asm volatile("");
}

// The same for a line that will be written, so that the core owns it by then.
inline void PrefetchForWrite(void* address) {
#if defined(__x86_64__)
  // Every x86-64 processor takes the instruction, but compilers use it only where told of it.
  asm volatile("prefetchw %0" : : "m"(*static_cast<char*>(address)));
#else
  __builtin_prefetch(address, 1);
  asm volatile("");
#endif
}

}  // namespace waybill::kernels

#endif  // KERNELS_PREFETCH_H_
