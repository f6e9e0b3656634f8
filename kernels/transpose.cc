#include "kernels/transpose.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

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

// Transposes panel by panel: a few tiles high and as wide as dst, so that whole rows of it can be
// absorbed, in order, before they leave the cache.
void TransposeByPanels(Element element, const TransposeBlock& block, size_t dst_element_bytes,
                       size_t src_element_bytes, DigestStream* digest) {
  // Neighbouring tiles share pages of the source, which spares the TLB; but a panel is to fit into
  // the second-level cache.
  constexpr size_t kPanelBytes = 512 * 1024;
  constexpr size_t kLineBytes = 64;
  constexpr size_t kMostLines = 4;
  const size_t line_bytes_of_all_columns = std::max<size_t>(1, block.columns) * kLineBytes;
  const size_t lines = std::clamp<size_t>(kPanelBytes / line_bytes_of_all_columns, 1, kMostLines);
  const size_t most_rows = lines * kLineBytes / dst_element_bytes;

  for (size_t r = 0; r < block.rows; r += most_rows) {
    TransposeBlock panel = block;
    panel.dst += static_cast<ptrdiff_t>(r) * block.dst_pitch;
    panel.src += r * src_element_bytes;
    panel.rows = std::min(most_rows, block.rows - r);
    TransposePanel(element, panel);
    if (digest != nullptr) {
      AbsorbRows(panel.dst, panel.dst_pitch, panel.rows, block.columns * dst_element_bytes, digest);
    }
  }
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
