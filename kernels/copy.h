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

// The same of `rows` rows whose beginnings lie a pitch apart, in bytes.
void Copy(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
          size_t row_bytes, Stores stores);

// Orders this thread's streaming stores before its later stores. Call it once after writing with
// Stores::kStreaming, before telling anybody that the bytes are there.
void StreamFence();

}  // namespace waybill::kernels

#endif  // KERNELS_COPY_H_
