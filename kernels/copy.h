// Plain copies, with a say in whether the bytes written stay in the cache.

#ifndef KERNELS_COPY_H_
#define KERNELS_COPY_H_

#include <cstddef>

namespace waybill::kernels {

enum class Stores {
  kCached,     // The destination is read again soon, or is small.
  kStreaming,  // Written past the cache where alignment allows; StreamFence() before publishing.
};

// Copies `size_bytes` bytes between ranges that do not overlap. Any alignment.
void Copy(void* dst, const void* src, size_t size_bytes, Stores stores);

// Orders this thread's streaming stores before its later stores. Whoever wrote with
// Stores::kStreaming calls it once, before telling anybody that the bytes are there.
void StreamFence();

}  // namespace waybill::kernels

#endif  // KERNELS_COPY_H_
