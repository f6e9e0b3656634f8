// SPDX-License-Identifier: Apache-2.0

#include "kernels/quantise.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/block_row.h"
#include "kernels/maxima.h"
#include "kernels/prepared_block.h"
#include "kernels/quantise_row.h"
#include "kernels/quantise_rule.h"
#include "kernels/scale.h"
#include "kernels/scales.h"

namespace waybill::kernels {
namespace {

// Bytes of a row that are made at once where they are digested or streamed; they stay in the
// first-level cache.
constexpr size_t kPieceBytes = 4096;

// `columns` columns of a grid, from column `first` of the rectangle on.
struct Piece {
  Piece(const BlockGrid& grid, size_t first, size_t columns)
      : block((first + grid.column_phase) / grid.block_columns),
        row{columns, grid.block_columns - (first + grid.column_phase) % grid.block_columns,
            grid.block_columns} {}

  size_t block;  // The block of its first column.
  BlockRow row;
};

// A block is prepared in the time of some of its rows, and only for vectors that lie within it.
bool IsWorthPreparing(size_t rows, const BlockGrid& grid) {
  return std::min(rows, grid.block_rows) >= 16 && grid.block_columns >= 64;
}

void Emit(std::byte* dst, const std::byte* piece, size_t size_bytes, Stores stores,
          DigestStream* digest) {
  if (digest == nullptr) {
    Copy(dst, piece, size_bytes, stores);
  } else {
    digest->AbsorbCopy(dst, piece, size_bytes, stores);
  }
}

// Makes rows of `row_count` elements of `element_bytes` bytes: make(to, r, first column, piece).
template <typename Make>
void MakeRows(void* dst, ptrdiff_t dst_pitch, size_t rows, size_t columns, size_t element_bytes,
              const BlockGrid& grid, Stores stores, DigestStream* digest, Make make) {
  std::byte* to = static_cast<std::byte*>(dst);
  alignas(64) std::byte buffer[kPieceBytes];
  const bool direct = digest == nullptr && stores == Stores::kCached;
  const size_t piece_columns = direct ? columns : kPieceBytes / element_bytes;
  for (size_t r = 0; r < rows; ++r, to += dst_pitch) {
    for (size_t column = 0; column < columns; column += piece_columns) {
      const size_t count = std::min(piece_columns, columns - column);
      std::byte* const row = to + column * element_bytes;
      make(direct ? row : buffer, r, column, Piece(grid, column, count));
      if (!direct) Emit(row, buffer, count * element_bytes, stores, digest);
    }
  }
}

// Whether codes can be streamed from where they are made.
bool StreamsDirectly(const RowsOfCodes& rows, const BlockGrid& grid, const QuantiseRule& rule) {
  const size_t bits = reinterpret_cast<uintptr_t>(rows.dst) | static_cast<size_t>(rows.dst_pitch) |
                      grid.column_phase | grid.block_columns;
  return bits % 64 == 0 && StreamsCodes(rule);
}

// Many rows of one row of blocks, which has `factors`.
void QuantiseBand(RowsOfCodes rows, size_t columns, const BlockGrid& grid, const float* factors,
                  const QuantiseRule& rule, DigestStream* digest) {
  // Kept from call to call: an update makes many, and allocates nothing once it is warm.
  thread_local std::vector<PreparedBlock> kept;
  const size_t block_count = grid.ColumnsOfBlocks(columns);
  if (kept.size() < block_count) kept.resize(block_count);
  PreparedBlock* const prepared = kept.data();
  PrepareBlocks(prepared, factors, block_count, rule);
  if (digest == nullptr && (rows.stores == Stores::kCached || StreamsDirectly(rows, grid, rule))) {
    QuantisePreparedRows(rows, Piece(grid, 0, columns).row, prepared, rule);
    return;
  }
  MakeRows(rows.dst, rows.dst_pitch, rows.count, columns, 1, grid, rows.stores, digest,
           [&](std::byte* to, size_t r, size_t column, const Piece& piece) {
             const std::byte* const from = rows.src +
                                           static_cast<ptrdiff_t>(r) * rows.src_pitch_bytes +
                                           column * SizeBytes(rule.type);
             QuantisePreparedRows(
                 {reinterpret_cast<uint8_t*>(to), 0, from, 0, 1, Stores::kCached, rows.ahead_bytes},
                 piece.row, prepared + piece.block, rule);
           });
}

}  // namespace

void QuantiseRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
                  size_t rows, size_t columns, const BlockGrid& grid, const float* factors,
                  ptrdiff_t factors_pitch, const QuantiseRule& rule, Stores stores,
                  DigestStream* digest) {
  const auto row_of = [&](size_t r, size_t column) {
    return static_cast<const std::byte*>(src) + static_cast<ptrdiff_t>(r) * src_pitch_bytes +
           column * SizeBytes(rule.type);
  };
  if (!IsWorthPreparing(rows, grid)) {
    MakeRows(dst, dst_pitch, rows, columns, 1, grid, stores, digest,
             [&](std::byte* to, size_t r, size_t column, const Piece& piece) {
               const size_t block_row = (r + grid.row_phase) / grid.block_rows;
               QuantiseRow(
                   reinterpret_cast<uint8_t*>(to), row_of(r, column), piece.row,
                   factors + static_cast<ptrdiff_t>(block_row) * factors_pitch + piece.block, rule);
             });
    return;
  }
  size_t band_rows = std::min(rows, grid.block_rows - grid.row_phase);
  for (size_t r = 0; r < rows; r += band_rows, band_rows = std::min(rows - r, grid.block_rows)) {
    QuantiseBand({reinterpret_cast<uint8_t*>(dst) + static_cast<ptrdiff_t>(r) * dst_pitch,
                  dst_pitch, row_of(r, 0), src_pitch_bytes, band_rows, stores, 0},
                 columns, grid, factors, rule, digest);
    factors += factors_pitch;
  }
}

namespace {

// As many columns of a band of rows as both passes work on at once: whole blocks. Of one row, few
// enough for the first-level cache; of many rows all, since pieces of many rows come from memory
// slowly.
size_t ColumnsAtOnce(const BlockGrid& grid, size_t band_rows, size_t columns) {
  constexpr size_t kMostColumns = 8192;
  if (band_rows > 1) return columns;
  const size_t blocks = std::max<size_t>(1, kMostColumns / grid.block_columns);
  return blocks < columns / grid.block_columns ? blocks * grid.block_columns : columns;
}

}  // namespace

void QuantiseBlocks(void* dst, ptrdiff_t dst_pitch, float* scales, ptrdiff_t scales_pitch,
                    const void* src, ptrdiff_t src_pitch_bytes, size_t rows, size_t columns,
                    const BlockGrid& grid, const ScaleRule& rule, Wide type, Wide via,
                    Stores stores, DigestStream* digest) {
  const QuantiseRule quantise{type, via, rule.to, rule.division};
  const size_t at_once = ColumnsAtOnce(grid, std::min(rows, grid.block_rows), columns);
  std::vector<float> factors;
  for (size_t r = 0; r < rows; r += grid.block_rows, scales += scales_pitch) {
    const size_t band_rows = std::min(grid.block_rows, rows - r);
    for (size_t column = 0; column < columns; column += at_once) {
      const size_t count = std::min(at_once, columns - column);
      const std::byte* const from = static_cast<const std::byte*>(src) +
                                    static_cast<ptrdiff_t>(r) * src_pitch_bytes +
                                    column * SizeBytes(type);
      factors.assign(grid.ColumnsOfBlocks(count), 0);
      CombineMaxima(factors.data(), 0, from, type, via, src_pitch_bytes, band_rows, count, grid);
      ScalesOf(scales + column / grid.block_columns, factors.data(), factors.data(), factors.size(),
               rule);
      std::byte* const to =
          static_cast<std::byte*>(dst) + static_cast<ptrdiff_t>(r) * dst_pitch + column;
      if (!IsWorthPreparing(band_rows, grid)) {
        QuantiseRows(to, dst_pitch, from, src_pitch_bytes, band_rows, count, grid, factors.data(),
                     0, quantise, stores, digest);
        continue;
      }
      // The next band comes from memory while this one is computed, if all of it is there.
      const bool ahead = rows - r - band_rows >= grid.block_rows;
      QuantiseBand({reinterpret_cast<uint8_t*>(to), dst_pitch, from, src_pitch_bytes, band_rows,
                    stores, ahead ? static_cast<ptrdiff_t>(band_rows) * src_pitch_bytes : 0},
                   count, grid, factors.data(), quantise, digest);
    }
  }
}

}  // namespace waybill::kernels
