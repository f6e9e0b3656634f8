#include "kernels/rows.h"

#include <hwy/cache_control.h>

#include <algorithm>

namespace waybill::kernels {
namespace {

bool IsOneRun(ptrdiff_t pitch, size_t rows, size_t row_bytes) {
  return rows <= 1 || pitch == static_cast<ptrdiff_t>(row_bytes);
}

// Hardware prefetchers do not see the next row coming. Asks for the row of as many bytes ahead as
// memory takes to answer; of a long row, for its beginning.
class RowPrefetcher {
 public:
  RowPrefetcher(ptrdiff_t pitch, size_t rows, size_t row_bytes)
      : rows_(rows),
        ahead_(std::max<size_t>(1, kAheadBytes / std::max<size_t>(1, row_bytes))),
        pitch_(pitch),
        bytes_(std::min(row_bytes, kAheadBytes)) {}

  // `row` is where row `r` begins.
  void At(const std::byte* row, size_t r) const {
    if (rows_ - r <= ahead_) return;
    row += static_cast<ptrdiff_t>(ahead_) * pitch_;
    for (size_t i = 0; i < bytes_; i += 64) hwy::Prefetch(row + i);
  }

 private:
  static constexpr size_t kAheadBytes = 4096;
  size_t rows_;
  size_t ahead_;
  ptrdiff_t pitch_;
  size_t bytes_;
};

}  // namespace

void CopyRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
              size_t row_bytes, Stores stores, DigestStream* digest) {
  if (IsOneRun(dst_pitch, rows, row_bytes) && IsOneRun(src_pitch, rows, row_bytes)) {
    row_bytes *= rows;
    rows = 1;
  }
  std::byte* to = static_cast<std::byte*>(dst);
  const std::byte* from = static_cast<const std::byte*>(src);
  const RowPrefetcher prefetch(src_pitch, rows, row_bytes);
  for (size_t r = 0; r < rows; ++r, to += dst_pitch, from += src_pitch) {
    prefetch.At(from, r);
    if (digest == nullptr) {
      Copy(to, from, row_bytes, stores);
    } else {
      digest->AbsorbCopy(to, from, row_bytes, stores);
    }
  }
}

void AbsorbRows(const void* src, ptrdiff_t pitch, size_t rows, size_t row_bytes,
                DigestStream* digest) {
  if (IsOneRun(pitch, rows, row_bytes)) {
    digest->Absorb(src, rows * row_bytes);
    return;
  }
  const std::byte* from = static_cast<const std::byte*>(src);
  const RowPrefetcher prefetch(pitch, rows, row_bytes);
  for (size_t r = 0; r < rows; ++r, from += pitch) {
    prefetch.At(from, r);
    digest->Absorb(from, row_bytes);
  }
}

}  // namespace waybill::kernels
