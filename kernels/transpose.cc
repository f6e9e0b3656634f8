// SPDX-License-Identifier: Apache-2.0

#include "kernels/transpose.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kernels/copy.h"
#include "kernels/prefetch.h"
#include "kernels/rows.h"
#include "kernels/transpose_panel.h"

namespace waybill::kernels {
namespace {

Element ElementOf(size_t bytes) {
  switch (bytes) {
    case 1:
      return Element::kBytes1;
    case 2:
      return Element::kBytes2;
    case 4:
      return Element::kBytes4;
    case 8:
      return Element::kBytes8;
    default:
      break;
  }
  std::fprintf(stderr, "transpose: an element of %zu bytes; allowed are 1, 2, 4 and 8\n", bytes);
  std::abort();
}

bool IsLineAligned(const TransposeBlock& block) {
  return reinterpret_cast<uintptr_t>(block.dst) % kCacheLineBytes == 0 &&
         block.dst_pitch % static_cast<ptrdiff_t>(kCacheLineBytes) == 0;
}

// The rows of dst that are transposed together. The higher a panel, the longer the runs that are
// read, which is what memory and the TLB want.
size_t PanelRows(size_t row_bytes, size_t element_bytes, bool absorbs) {
  const size_t tile_rows = kCacheLineBytes / element_bytes;
  const size_t most = 32 * tile_rows;
  if (!absorbs) return most;
  const size_t absorbed = StripeWindow::kMostBytes / std::max<size_t>(1, row_bytes);
  if (absorbed < tile_rows) return std::max<size_t>(1, absorbed);
  return std::min(most, absorbed / tile_rows * tile_rows);
}

// Transposes panel by panel: a few tiles high and as wide as dst, so that its rows are absorbed in
// order.
void TransposeByPanels(Element element, const TransposeBlock& block, size_t dst_element_bytes,
                       size_t src_element_bytes, DigestStream* digest) {
  // Blocks that exceed the second-level cache are written past it, because short strided stores
  // through the cache would read each line too, and far slower. So are the pieces of an update,
  // since other pieces fill the cache.
  constexpr size_t kStreamedBytes = 256 << 10;
  const size_t row_bytes = block.columns * dst_element_bytes;
  const Stores stores = IsLineAligned(block) && block.rows * row_bytes >= kStreamedBytes
                            ? Stores::kStreaming
                            : Stores::kCached;
  const size_t most_rows = PanelRows(row_bytes, dst_element_bytes, digest != nullptr);

  for (size_t r = 0; r < block.rows; r += most_rows) {
    TransposeBlock panel = block;
    panel.dst += static_cast<ptrdiff_t>(r) * block.dst_pitch;
    panel.src += r * src_element_bytes;
    panel.rows = std::min(most_rows, block.rows - r);
    const size_t panel_bytes = panel.rows * row_bytes;
    if (digest != nullptr && StripeWindow::Fits(*digest, row_bytes, panel_bytes)) {
      StripeWindow window(digest, panel_bytes);
      TransposePanel(element, panel, stores, &window);
      continue;
    }
    TransposePanel(element, panel, stores, nullptr);
    if (digest != nullptr) {
      AbsorbRows(panel.dst, panel.dst_pitch, panel.rows, row_bytes, digest);
    }
  }
  if (stores == Stores::kStreaming) StreamFence();
}

}  // namespace

void Transpose(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
               size_t columns, size_t element_bytes, DigestStream* digest) {
  const TransposeBlock block = {static_cast<std::byte*>(dst),
                                dst_pitch,
                                static_cast<const std::byte*>(src),
                                src_pitch,
                                rows,
                                columns};
  TransposeByPanels(ElementOf(element_bytes), block, element_bytes, element_bytes, digest);
}

void CastTransposeF32ToBf16(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch,
                            size_t rows, size_t columns, DigestStream* digest) {
  const TransposeBlock block = {static_cast<std::byte*>(dst),
                                dst_pitch,
                                static_cast<const std::byte*>(src),
                                src_pitch,
                                rows,
                                columns};
  TransposeByPanels(Element::kF32ToBf16, block, 2, 4, digest);
}

}  // namespace waybill::kernels
