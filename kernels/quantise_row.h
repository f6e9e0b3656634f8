// The inner loops of casts and quantisation to 8-bit floats, for every vector target. Of use to
// fp8.cc and quantise.cc only.

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

// As QuantiseRows, for one row: `factors` has one for each block that the row meets.
void QuantiseRow(uint8_t* dst, const void* src, const BlockRow& row, const float* factors,
                 const QuantiseRule& rule);

// Where rows come from and go to.
struct RowsOfCodes {
  uint8_t* dst;
  ptrdiff_t dst_pitch;
  const std::byte* src;
  ptrdiff_t src_pitch_bytes;
  size_t count;
  // Streaming: only if StreamsCodes(rule), and every block begins at a cache line of each row.
  Stores stores;
  // So far after each source byte lies one that is read soon, and is asked for by then; or 0.
  ptrdiff_t ahead_bytes;
};

// The same for many rows of the same blocks, and faster: what can be is worked out once.
void PrepareBlocks(PreparedBlock* prepared, const float* factors, size_t count,
                   const QuantiseRule& rule);
void QuantisePreparedRows(const RowsOfCodes& rows, const BlockRow& row,
                          const PreparedBlock* prepared, const QuantiseRule& rule);

// Whether this machine's vectors write codes past the cache.
bool StreamsCodes(const QuantiseRule& rule);

}  // namespace waybill::kernels

#endif  // KERNELS_QUANTISE_ROW_H_
