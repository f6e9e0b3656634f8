// SPDX-License-Identifier: Apache-2.0

// The places of a piece's elements, as rectangles that one call of a kernel handles.
#ifndef WAYBILL_CORE_STAGE_PIECE_WALK_H_
#define WAYBILL_CORE_STAGE_PIECE_WALK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/plan/route_table.h"
#include "core/tensor/box.h"
#include "core/tensor/quantisation.h"
#include "kernels/block_grid.h"

namespace waybill {

// How the bytes of a piece are laid out: one after the other from its first on, or each at its
// place in the route.
enum class Packing : uint8_t { kPacked, kInPlace };

// Rows of a route's two innermost axes. Offsets and pitches in bytes; those of the source from the
// route's first element on, those of the destination from the piece's (packed) or the route's.
struct PieceBlock {
  int64_t first = 0;  // Element of the walk.
  int64_t source_offset = 0;
  int64_t source_pitch = 0;         // From row to row.
  int64_t source_column_pitch = 0;  // From element to element.
  int64_t destination_offset = 0;
  int64_t destination_pitch = 0;
  size_t rows = 0;
  size_t columns = 0;
};

// Calls visit(PieceBlock) for elements [first, last) of the walk, in order.
template <typename Visit>
void ForEachBlock(const RouteShape& shape, int64_t first, int64_t last, Packing packing,
                  Visit visit) {
  const auto element = static_cast<int64_t>(shape.destination_element_bytes);
  const Axis columns = shape.axes.back();
  const Axis rows = shape.axes.size() > 1 ? shape.axes[shape.axes.size() - 2] : Axis{1, 0, 0};
  const bool packed = packing == Packing::kPacked;
  const int64_t start = first;
  while (first < last) {
    const int64_t column = first % columns.extent;
    const int64_t count = std::min(columns.extent - column, last - first);
    int64_t height = 1;
    if (column == 0 && rows.extent > 1) {  // As many whole rows as the axis above has left.
      const int64_t row = first / columns.extent % rows.extent;
      height = std::max<int64_t>(1, std::min(rows.extent - row, (last - first) / columns.extent));
    }
    int64_t from = 0, to = 0, index = first;
    for (size_t a = shape.axes.size(); a-- > 0;) {
      const Axis& axis = shape.axes[a];
      from += index % axis.extent * axis.source_stride;
      to += index % axis.extent * axis.destination_stride;
      index /= axis.extent;
    }
    visit(
        PieceBlock{.first = first,
                   .source_offset = from,
                   .source_pitch = rows.source_stride,
                   .source_column_pitch = columns.source_stride,
                   .destination_offset = packed ? (first - start) * element : to,
                   .destination_pitch = packed ? columns.extent * element : rows.destination_stride,
                   .rows = static_cast<size_t>(height),
                   .columns = static_cast<size_t>(count)});
    first += height * count;
  }
}

// The same of a route that quantises, with the blocks that share a scale.
struct QuantisedBlock {
  PieceBlock place;
  Box blocks;               // The blocks of the quantisation's grid that it crosses.
  kernels::BlockGrid grid;  // As it lies on them.
};

// Calls visit(QuantisedBlock) for elements [first, last) of a route with this `box`, in order. Cuts
// rectangles at the tensor's rows that are multiples of `band_rows`.
template <typename Visit>
void ForEachQuantisedBlock(const RouteShape& shape, const Box& box, const Extents2& block,
                           int64_t band_rows, int64_t first, int64_t last, Packing packing,
                           Visit visit) {
  const int row = box.dimensions() - 2, column = box.dimensions() - 1;
  const int64_t start = first;
  while (first < last) {
    // To the end of the band: whole rows, if they are not less than one.
    const int64_t width = shape.axes.back().extent;
    const int64_t height = shape.axes[shape.axes.size() - 2].extent;
    const int64_t at_row = first / width % height;
    const int64_t left = band_rows - (box.begin(row) + at_row) % band_rows;
    const int64_t end = std::min(last, (first / width + std::min(left, height - at_row)) * width);
    ForEachBlock(shape, first, end, packing, [&](PieceBlock place) {
      if (packing == Packing::kPacked) place.destination_offset += first - start;
      Box elements = box;
      int64_t index = place.first;
      for (int d = box.dimensions(); d-- > 0;) {
        const int64_t extent = shape.axes[static_cast<size_t>(d)].extent;
        const int64_t at = box.begin(d) + index % extent;
        index /= extent;
        const auto size = static_cast<int64_t>(d == row      ? place.rows
                                               : d == column ? place.columns
                                                             : 1);
        elements.Set(d, at, at + size);
      }
      const kernels::BlockGrid grid = {
          .block_rows = static_cast<size_t>(block.rows),
          .block_columns = static_cast<size_t>(block.columns),
          .row_phase = static_cast<size_t>(elements.begin(row) % block.rows),
          .column_phase = static_cast<size_t>(elements.begin(column) % block.columns)};
      visit(QuantisedBlock{place, CellsMeeting(elements, block), grid});
    });
    first = end;
  }
}

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_PIECE_WALK_H_
