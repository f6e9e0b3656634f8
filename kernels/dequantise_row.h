// The inner loops of the way back from 8-bit floats, for every vector target. Of use to fp8.cc and
// quantise.cc only.

#ifndef KERNELS_DEQUANTISE_ROW_H_
#define KERNELS_DEQUANTISE_ROW_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_row.h"
#include "kernels/elements.h"

namespace waybill::kernels {

// What is worked out once for a block: see dequantise_row.cc.
struct PreparedScale {
  alignas(16) uint8_t low[16];
  alignas(16) uint8_t high[16];
  float scale;
  uint8_t first;  // Of the codes that go by the table ...
  uint8_t count;  // ... and how many do; 0: none.
};

void PrepareScales(PreparedScale* prepared, const float* scales, size_t count, Wide to,
                   Narrow from);

// As DequantiseRows, for one row: `scales` has one for each block that the row meets, prepared for
// the same types.
void DequantiseRow(void* dst, Wide to, const uint8_t* src, Narrow from, const BlockRow& row,
                   const PreparedScale* scales);

}  // namespace waybill::kernels

#endif  // KERNELS_DEQUANTISE_ROW_H_
