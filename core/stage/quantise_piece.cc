#include "core/stage/quantise_piece.h"

#include <algorithm>
#include <array>

#include "core/tensor/box_index.h"
#include "core/tensor/quantisation.h"
#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/quantise.h"

namespace waybill {
namespace {

using kernels::DigestStream;
using kernels::Stores;

// So many rows are worked out and quantised at a time, so that the second pass finds them in the
// cache.
constexpr int64_t kBandRows = 128;

class PieceQuantiser {
 public:
  PieceQuantiser(const RouteShape& shape, const Box& box, ScaleValues& scales, DigestStream* digest,
                 Stores stores)
      : shape_(shape),
        box_(box),
        scales_(scales),
        digest_(digest),
        stores_(stores),
        row_(shape.axes[shape.axes.size() - 2]),
        columns_(shape.axes.back().extent) {}

  // Elements [first, last) of the walk.
  void Run(const std::byte* source, int64_t first, int64_t last, std::byte* destination,
           bool packed) const {
    const int64_t start = first;
    while (first < last) {
      const int64_t column = first % columns_;
      const int64_t row = first / columns_ % row_.extent;
      int64_t rows = 1;
      int64_t count = std::min(columns_ - column, last - first);
      if (column == 0) {  // As many whole rows as the matrix, and the band, have left.
        const int64_t band = kBandRows - (box_.begin(box_.dimensions() - 2) + row) % kBandRows;
        rows = std::max<int64_t>(1, std::min({row_.extent - row, (last - first) / columns_, band}));
      }
      Do(source, first, rows, count, packed ? destination + (first - start) : destination, packed);
      first += rows * count;
    }
  }

 private:
  // `rows` rows of `count` elements, from element `first` of the walk on.
  void Do(const std::byte* source, int64_t first, int64_t rows, int64_t count,
          std::byte* destination, bool packed) const {
    std::array<int64_t, kMaxDimensions> at;
    int64_t rest = first, from = 0, to = 0;
    for (size_t d = shape_.axes.size(); d-- > 0;) {
      const Axis& axis = shape_.axes[d];
      const int64_t i = rest % axis.extent;
      rest /= axis.extent;
      from += i * axis.source_stride;
      to += i * axis.destination_stride;
      at[d] = box_.begin(static_cast<int>(d)) + i;
    }
    const size_t dimensions = shape_.axes.size();
    const ScaleTable& table = scales_.table();
    Box elements = OneAt({at.data(), dimensions});
    elements.Set(elements.dimensions() - 2, at[dimensions - 2], at[dimensions - 2] + rows);
    elements.Set(elements.dimensions() - 1, at[dimensions - 1], at[dimensions - 1] + count);
    const Box blocks = CellsMeeting(elements, table.block);
    scales_.Need(blocks);
    const kernels::BlockGrid grid = {
        .block_rows = static_cast<size_t>(table.block.rows),
        .block_columns = static_cast<size_t>(table.block.columns),
        .row_phase = static_cast<size_t>(at[dimensions - 2] % table.block.rows),
        .column_phase = static_cast<size_t>(at[dimensions - 1] % table.block.columns)};
    kernels::QuantiseRows(packed ? destination : destination + to,
                          packed ? count : row_.destination_stride, source + from,
                          row_.source_stride, static_cast<size_t>(rows), static_cast<size_t>(count),
                          grid, scales_.FactorsAt(blocks.begins()), scales_.factors_pitch(),
                          scales_.rule(), stores_, digest_);
  }

  const RouteShape& shape_;
  const Box& box_;
  ScaleValues& scales_;
  DigestStream* digest_;
  Stores stores_;
  Axis row_;
  int64_t columns_;
};

uint64_t Quantise(const RouteShape& shape, const Box& box, ScaleValues& scales,
                  const std::byte* source, uint64_t begin, uint64_t end, std::byte* destination,
                  bool packed, Digests digests) {
  DigestStream digest(begin / kernels::kLeafBytes);
  const PieceQuantiser quantiser(shape, box, scales, digests == Digests::kOn ? &digest : nullptr,
                                 packed ? Stores::kCached : Stores::kStreaming);
  quantiser.Run(source, static_cast<int64_t>(begin), static_cast<int64_t>(end), destination,
                packed);
  return digests == Digests::kOn ? digest.sum() : 0;
}

}  // namespace

uint64_t QuantisePacked(const RouteShape& shape, const Box& box, ScaleValues& scales,
                        const std::byte* source, uint64_t begin, uint64_t end, std::byte* slot,
                        Digests digests) {
  return Quantise(shape, box, scales, source, begin, end, slot, /*packed=*/true, digests);
}

uint64_t QuantiseInPlace(const RouteShape& shape, const Box& box, ScaleValues& scales,
                         const std::byte* source, uint64_t begin, uint64_t end,
                         std::byte* destination, Digests digests) {
  return Quantise(shape, box, scales, source, begin, end, destination, /*packed=*/false, digests);
}

}  // namespace waybill
