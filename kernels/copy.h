// SPDX-License-Identifier: Apache-2.0

// Plain copies, through the cache or past it.

#ifndef KERNELS_COPY_H_
#define KERNELS_COPY_H_

#include <cstddef>

namespace waybill::kernels {

enum class Stores {
  kCached,     // For destinations that are small, or read again soon.
  kStreaming,  // Written past the cache where alignment allows; StreamFence() before publishing.
};

// Copies `size_bytes` bytes of any alignment. The ranges must not overlap.
void Copy(void* dst, const void* src, size_t size_bytes, Stores stores);

// Copies one of many runs in the same way. While it streams, it prefetches the line `ahead` bytes
// after each line that it reads; 0 prefetches nothing new.
void CopyRun(void* dst, const void* src, size_t size_bytes, Stores stores, ptrdiff_t ahead);

// Orders this thread's streaming stores before its later stores. Call it once after writing with
// Stores::kStreaming, before telling anybody that the bytes are there.
void StreamFence();

}  // namespace waybill::kernels

#endif  // KERNELS_COPY_H_
