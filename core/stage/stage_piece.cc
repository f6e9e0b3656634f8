#include "core/stage/stage_piece.h"

#include <algorithm>
#include <cstring>

#include "core/plan/chunks.h"
#include "kernels/cast.h"
#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/rows.h"
#include "kernels/transpose.h"

namespace waybill {
namespace {

using kernels::DigestStream;
using kernels::Stores;

// Some rows of the route's two innermost axes, to be done by one call of a kernel.
struct Block {
  std::byte* destination;
  const std::byte* source;
  int64_t destination_pitch;
  int64_t source_pitch;  // From row to row.
  size_t rows;
  size_t columns;
};

class PieceStager {
 public:
  PieceStager(const RouteShape& shape, DigestStream* digest, Stores stores)
      : shape_(shape), digest_(digest), stores_(stores), columns_(shape.axes.back()) {
    if (shape.axes.size() > 1) rows_ = shape.axes[shape.axes.size() - 2];
  }

  // Where in the two memories element `index` of the walk lies.
  std::pair<int64_t, int64_t> Offsets(int64_t index) const {
    int64_t source = 0, destination = 0;
    for (size_t a = shape_.axes.size(); a-- > 0;) {
      const Axis& axis = shape_.axes[a];
      const int64_t i = index % axis.extent;
      index /= axis.extent;
      source += i * axis.source_stride;
      destination += i * axis.destination_stride;
    }
    return {source, destination};
  }

  // Elements [first, last), to their places or, where `packed`, one after the other.
  void Run(const std::byte* source, int64_t first, int64_t last, std::byte* destination,
           bool packed) const {
    const auto element = static_cast<int64_t>(shape_.destination_element_bytes);
    const int64_t start = first;
    while (first < last) {
      const int64_t column = first % columns_.extent;
      int64_t count = std::min(columns_.extent - column, last - first);
      int64_t rows = 1;
      if (column == 0 && rows_.extent > 1) {  // As many whole rows as the axis above has left.
        const int64_t row = first / columns_.extent % rows_.extent;
        rows = std::max<int64_t>(1, std::min(rows_.extent - row, (last - first) / columns_.extent));
      }
      const auto [from, to] = Offsets(first);
      Do({.destination = destination + (packed ? (first - start) * element : to),
          .source = source + from,
          .destination_pitch = packed ? columns_.extent * element : rows_.destination_stride,
          .source_pitch = rows_.source_stride,
          .rows = static_cast<size_t>(rows),
          .columns = static_cast<size_t>(count)});
      first += rows * count;
    }
  }

 private:
  void Do(const Block& b) const {
    const bool turned = shape_.transposed();
    if (!turned && shape_.transform == Transform::kNone) {
      kernels::CopyRows(b.destination, b.destination_pitch, b.source, b.source_pitch, b.rows,
                        b.columns * shape_.destination_element_bytes, stores_, digest_);
    } else if (!turned) {
      for (size_t r = 0; r < b.rows; ++r) {
        const auto row = static_cast<int64_t>(r);
        kernels::CastF32ToBf16(b.destination + row * b.destination_pitch,
                               b.source + row * b.source_pitch, b.columns, stores_, digest_);
      }
    } else if (b.rows > 1 && b.source_pitch == static_cast<int64_t>(shape_.source_element_bytes)) {
      if (shape_.transform == Transform::kNone) {
        kernels::Transpose(b.destination, b.destination_pitch, b.source, columns_.source_stride,
                           b.rows, b.columns, shape_.destination_element_bytes, digest_);
      } else {
        kernels::CastTransposeF32ToBf16(b.destination, b.destination_pitch, b.source,
                                        columns_.source_stride, b.rows, b.columns, digest_);
      }
    } else {
      for (size_t r = 0; r < b.rows; ++r) {
        const auto row = static_cast<int64_t>(r);
        GatherRow(b.source + row * b.source_pitch, b.destination + row * b.destination_pitch,
                  b.columns);
      }
    }
  }

  // A row whose elements lie apart, by way of a small buffer: the ends of transposed pieces, and
  // axis orders that no tile fits.
  void GatherRow(const std::byte* source, std::byte* destination, size_t count) const {
    alignas(64) std::byte near[2048];
    const size_t element = shape_.source_element_bytes;
    const size_t at_a_time = sizeof(near) / element;
    while (count > 0) {
      const size_t now = std::min(count, at_a_time);
      for (size_t i = 0; i < now; ++i) {
        std::memcpy(near + i * element, source, element);
        source += columns_.source_stride;
      }
      if (shape_.transform == Transform::kNone) {
        kernels::CopyRows(destination, 0, near, 0, 1, now * element, Stores::kCached, digest_);
      } else {
        kernels::CastF32ToBf16(destination, near, now, Stores::kCached, digest_);
      }
      destination += now * shape_.destination_element_bytes;
      count -= now;
    }
  }

  const RouteShape& shape_;
  DigestStream* digest_;
  Stores stores_;
  Axis columns_;
  Axis rows_{1, 0, 0};
};

uint64_t Stage(const RouteShape& shape, const std::byte* source, uint64_t begin, uint64_t end,
               std::byte* destination, bool packed, Digests digests) {
  DigestStream digest(begin / kernels::kLeafBytes);
  const PieceStager stager(shape, digests == Digests::kOn ? &digest : nullptr,
                           packed ? Stores::kCached : Stores::kStreaming);
  const uint64_t element = shape.destination_element_bytes;
  stager.Run(source, static_cast<int64_t>(begin / element), static_cast<int64_t>(end / element),
             destination, packed);
  return digests == Digests::kOn ? digest.sum() : 0;
}

}  // namespace

static_assert(kCutBytes % kernels::kLeafBytes == 0, "a piece is whole leaves");

uint64_t StagePacked(const RouteShape& shape, const std::byte* source, uint64_t begin, uint64_t end,
                     std::byte* slot, Digests digests) {
  return Stage(shape, source, begin, end, slot, /*packed=*/true, digests);
}

uint64_t StageInPlace(const RouteShape& shape, const std::byte* source, uint64_t begin,
                      uint64_t end, std::byte* destination, Digests digests) {
  return Stage(shape, source, begin, end, destination, /*packed=*/false, digests);
}

uint64_t DigestInPlace(const RouteShape& shape, const std::byte* destination, uint64_t begin,
                       uint64_t end) {
  DigestStream digest(begin / kernels::kLeafBytes);
  ForEachDestinationRun(shape, begin, end, [&](uint64_t offset, uint64_t size) {
    digest.Absorb(destination + offset, size);
  });
  return digest.sum();
}

}  // namespace waybill
