// SPDX-License-Identifier: Apache-2.0

// The inner loops of transpose.cc, for every vector target.

#ifndef KERNELS_TRANSPOSE_PANEL_H_
#define KERNELS_TRANSPOSE_PANEL_H_

#include <cstddef>

#include "kernels/copy.h"
#include "kernels/stripe_window.h"

namespace waybill::kernels {

enum class Element { kBytes1, kBytes2, kBytes4, kBytes8, kF32ToBf16 };

// dst[r][c] = src[c][r]; pitches in bytes.
struct TransposeBlock {
  std::byte* dst;
  ptrdiff_t dst_pitch;
  const std::byte* src;
  ptrdiff_t src_pitch;
  size_t rows;
  size_t columns;
};

// Writes all rows of dst together, a few cache lines of each at a time, so there should not be too
// many rows. kStreaming needs a dst and a pitch that are multiples of 64. Unless `window` is null,
// it absorbs the rows, which fill it, one after the other.
void TransposePanel(Element element, const TransposeBlock& block, Stores stores,
                    StripeWindow* window);

}  // namespace waybill::kernels

#endif  // KERNELS_TRANSPOSE_PANEL_H_
