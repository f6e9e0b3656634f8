// SPDX-License-Identifier: Apache-2.0

#include "kernels/rows.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/prefetch.h"

namespace waybill::kernels {
namespace {

bool IsOneRun(ptrdiff_t pitch, size_t rows, size_t row_bytes) {
  return rows <= 1 || pitch == static_cast<ptrdiff_t>(row_bytes);
}

// Calls `take(row, ahead)` for each row. `ahead` is the distance to a later row, to be prefetched
// meanwhile because hardware prefetchers do not see it coming, or within a long row to its own
// bytes.
template <class Take>
void ForEachRow(size_t rows, ptrdiff_t pitch, size_t row_bytes, const Take& take) {
  constexpr size_t kAheadBytes = 2 * kFarBytes;
  const bool is_long = row_bytes >= 16 * kFarBytes;
  const size_t rows_ahead = (kAheadBytes + row_bytes - 1) / std::max<size_t>(1, row_bytes);
  for (size_t r = 0; r < rows; ++r) {
    const ptrdiff_t row_ahead =
        r + rows_ahead < rows ? static_cast<ptrdiff_t>(rows_ahead) * pitch : 0;
    take(static_cast<ptrdiff_t>(r), is_long ? static_cast<ptrdiff_t>(kFarBytes) : row_ahead);
  }
}

}  // namespace

void CopyRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
              size_t row_bytes, Stores stores, DigestStream* digest) {
  if (IsOneRun(dst_pitch, rows, row_bytes) && IsOneRun(src_pitch, rows, row_bytes)) {
    row_bytes *= rows;
    rows = 1;
  }
  ForEachRow(rows, src_pitch, row_bytes, [&](ptrdiff_t r, ptrdiff_t ahead) {
    std::byte* const to = static_cast<std::byte*>(dst) + r * dst_pitch;
    const std::byte* const from = static_cast<const std::byte*>(src) + r * src_pitch;
    if (digest != nullptr) {
      digest->AbsorbCopyRun(to, from, row_bytes, stores, ahead);
    } else {
      CopyRun(to, from, row_bytes, stores, ahead);
    }
  });
}

void AbsorbRows(const void* src, ptrdiff_t pitch, size_t rows, size_t row_bytes,
                DigestStream* digest) {
  if (IsOneRun(pitch, rows, row_bytes)) {
    row_bytes *= rows;
    rows = 1;
  }
  ForEachRow(rows, pitch, row_bytes, [&](ptrdiff_t r, ptrdiff_t ahead) {
    digest->AbsorbRun(static_cast<const std::byte*>(src) + r * pitch, row_bytes, ahead);
  });
}

}  // namespace waybill::kernels
