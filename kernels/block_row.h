// One row of elements and the blocks that it goes through: the inner loops of quantisation, for
// every vector target. Of use to fp8.cc, maxima.cc and quantise.cc only.

#ifndef KERNELS_BLOCK_ROW_H_
#define KERNELS_BLOCK_ROW_H_

#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/quantise_rule.h"

namespace waybill::kernels {

// `columns` elements, of which the first `first_block` (above 0) are of the first block, and then
// `block_columns` of each; the last may have fewer.
struct BlockRow {
  size_t columns;
  size_t first_block;
  size_t block_columns;
};

// As the functions of the headers, for one row: `factors`, `scales` and `maxima` have one for each
// block that the row meets.
void QuantiseRow(uint8_t* dst, const void* src, const BlockRow& row, const float* factors,
                 const QuantiseRule& rule);
void DequantiseRow(void* dst, Wide to, const uint8_t* src, Narrow from, const BlockRow& row,
                   const float* scales);
void CombineRowMaxima(float* maxima, const void* src, Wide type, Wide via, const BlockRow& row);
uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns);

}  // namespace waybill::kernels

#endif  // KERNELS_BLOCK_ROW_H_
