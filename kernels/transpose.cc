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
  }
  std::fprintf(stderr, "transpose: an element of %zu bytes; allowed are 1, 2, 4 and 8\n", bytes);
  std::abort();
}

bool IsLineAligned(const TransposeBlock& block) {
  return reinterpret_cast<uintptr_t>(block.dst) % kCacheLineBytes == 0 &&
         block.dst_pitch % static_cast<ptrdiff_t>(kCacheLineBytes) == 0;
}

// Transposes panel by panel: a few tiles high and as wide as dst, so that whole rows of it are
// absorbed, in order, while the next panel is still to come.
void TransposeByPanels(Element element, const TransposeBlock& block, size_t dst_element_bytes,
                       size_t src_element_bytes, DigestStream* digest) {
  // What does not fit into the second-level cache goes past it, even where it is read again for the
  // digest: short strided stores through the cache would read each line too, and far slower. So
  // does a piece of an update, which is one of many: the cache is full of the others.
  constexpr size_t kStreamedBytes = 256 << 10;
  const Stores stores =
      IsLineAligned(block) && block.rows * block.columns * dst_element_bytes >= kStreamedBytes
          ? Stores::kStreaming
          : Stores::kCached;

  // The higher a panel, the longer the runs that are read, which is what memory and the TLB want;
  // but what was stored in the cache must be absorbed while it is there, if only in the last one.
  constexpr size_t kPanelBytes = 2 << 20;
  constexpr size_t kMostLines = 32;
  size_t lines = kMostLines;
  if (digest != nullptr && stores == Stores::kCached) {
    const size_t bytes_per_line = std::max<size_t>(1, block.columns) * kCacheLineBytes;
    lines = std::clamp<size_t>(kPanelBytes / bytes_per_line, 1, kMostLines);
  }
  const size_t most_rows = lines * kCacheLineBytes / dst_element_bytes;

  for (size_t r = 0; r < block.rows; r += most_rows) {
    TransposeBlock panel = block;
    panel.dst += static_cast<ptrdiff_t>(r) * block.dst_pitch;
    panel.src += r * src_element_bytes;
    panel.rows = std::min(most_rows, block.rows - r);
    TransposePanel(element, panel, stores);
    if (digest != nullptr) {
      AbsorbRows(panel.dst, panel.dst_pitch, panel.rows, block.columns * dst_element_bytes, digest);
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
