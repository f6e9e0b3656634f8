// SPDX-License-Identifier: Apache-2.0

// The inner loops of quantise.cc, for every vector target.

#ifndef KERNELS_QUANTISE_ROW_H_
#define KERNELS_QUANTISE_ROW_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_row.h"
#include "kernels/copy.h"
#include "kernels/elements.h"
#include "kernels/prepared_block.h"
#include "kernels/quantise_rule.h"

namespace waybill::kernels {

// Quantises one row, as QuantiseRows does. `factors` has one factor for each block that the row
// crosses.
void QuantiseRow(uint8_t* dst, const void* src, const BlockRow& row, const float* factors,
                 const QuantiseRule& rule);

// The source and the destination of rows.
struct RowsOfCodes {
  uint8_t* dst;
  ptrdiff_t dst_pitch;
  const std::byte* src;
  ptrdiff_t src_pitch_bytes;
  size_t count;
  // kStreaming is allowed only if StreamsCodes(rule), and if every block begins at a cache line.
  Stores stores;
  // The distance from each source byte to the byte to prefetch, or 0 for no prefetching.
  ptrdiff_t ahead_bytes;
};

// Quantises many rows of the same blocks. Faster, because it prepares each block once.
void PrepareBlocks(PreparedBlock* prepared, const float* factors, size_t count,
                   const QuantiseRule& rule);
void QuantisePreparedRows(const RowsOfCodes& rows, const BlockRow& row,
                          const PreparedBlock* prepared, const QuantiseRule& rule);

// Returns true if this machine's vectors can write codes past the cache.
bool StreamsCodes(const QuantiseRule& rule);

}  // namespace waybill::kernels

#endif  // KERNELS_QUANTISE_ROW_H_
