#include "kernels/rows.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/prefetch.h"

namespace waybill::kernels {
namespace {

bool IsOneRun(ptrdiff_t pitch, size_t rows, size_t row_bytes) {
  return rows <= 1 || pitch == static_cast<ptrdiff_t>(row_bytes);
}

// Asks for the row that lies as many bytes ahead as memory takes to answer, since hardware
// prefetchers do not see it coming. Only for short rows: what is won is the wait at a row's
// beginning.
class RowPrefetcher {
 public:
  RowPrefetcher(ptrdiff_t pitch, size_t rows, size_t row_bytes)
      : rows_(row_bytes < kAheadBytes ? rows : 0),
        ahead_(kAheadBytes / std::max<size_t>(1, row_bytes)),
        pitch_(pitch),
        row_bytes_(row_bytes) {}

  // `row` is where row `r` begins.
  void At(const std::byte* row, size_t r) const {
    if (r + ahead_ >= rows_) return;
    row += static_cast<ptrdiff_t>(ahead_) * pitch_;
    for (size_t i = 0; i < row_bytes_; i += 64) Prefetch(row + i);
  }

 private:
  static constexpr size_t kAheadBytes = 4096;
  size_t rows_;
  size_t ahead_;
  ptrdiff_t pitch_;
  size_t row_bytes_;
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
  if (digest == nullptr) {
    Copy(to, dst_pitch, from, src_pitch, rows, row_bytes, stores);
    return;
  }
  const RowPrefetcher prefetch(src_pitch, rows, row_bytes);
  for (size_t r = 0; r < rows; ++r, to += dst_pitch, from += src_pitch) {
    prefetch.At(from, r);
    digest->AbsorbCopy(to, from, row_bytes, stores);
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
