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

}  // namespace waybill::kernels

#endif  // KERNELS_PREFETCH_H_
