// The inner loops of nvfp4.h, for every vector target. Of use to nvfp4.cc only.

#ifndef KERNELS_NVFP4_ROW_H_
#define KERNELS_NVFP4_ROW_H_

#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"

namespace waybill::kernels {

// Both go through as many of the `blocks` blocks of 16 as vectors take, and say how many.

// A factor a block: (1 / g) / s.
size_t QuantiseNvfp4Blocks(uint8_t* dst, const void* src, Wide type, Wide via, const float* factors,
                           size_t blocks);
// A scale a block: s * g.
size_t DequantiseNvfp4Blocks(void* dst, Wide to, const uint8_t* src, const float* scales,
                             size_t blocks);

}  // namespace waybill::kernels

#endif  // KERNELS_NVFP4_ROW_H_
