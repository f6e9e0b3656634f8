// SPDX-License-Identifier: Apache-2.0

#include "core/stage/stage_piece.h"

#include <algorithm>
#include <cstring>

#include "core/plan/chunks.h"
#include "core/stage/cast_of.h"
#include "core/stage/piece_walk.h"
#include "kernels/cast.h"
#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/rows.h"
#include "kernels/transpose.h"

namespace waybill {
namespace {

using kernels::DigestStream;
using kernels::Stores;

// A row whose elements lie apart, by way of a small buffer: the ends of transposed pieces, and
// axis orders that no tile fits.
void GatherRow(const RouteShape& shape, const std::byte* source, int64_t pitch,
               std::byte* destination, size_t count, DigestStream* digest) {
  alignas(64) std::byte near[2048];
  const size_t element = shape.source_element_bytes;
  const size_t at_a_time = sizeof(near) / element;
  while (count > 0) {
    const size_t now = std::min(count, at_a_time);
    for (size_t i = 0; i < now; ++i) {
      std::memcpy(near + i * element, source, element);
      source += pitch;
    }
    if (const auto cast = CastOf(shape.transform)) {
      kernels::CastElements(*cast, destination, near, now, Stores::kCached, digest);
    } else {
      kernels::CopyRows(destination, 0, near, 0, 1, now * element, Stores::kCached, digest);
    }
    destination += now * shape.destination_element_bytes;
    count -= now;
  }
}

void StageBlock(const RouteShape& shape, const PieceBlock& b, const std::byte* source,
                std::byte* destination, Stores stores, DigestStream* digest) {
  const bool turned = shape.transposed();
  const auto cast = CastOf(shape.transform);
  if (!turned && !cast) {
    kernels::CopyRows(destination, b.destination_pitch, source, b.source_pitch, b.rows,
                      b.columns * shape.destination_element_bytes, stores, digest);
    return;
  }
  const bool tiles =
      b.rows > 1 && b.source_pitch == static_cast<int64_t>(shape.source_element_bytes);
  if (turned && tiles && !cast) {
    kernels::Transpose(destination, b.destination_pitch, source, b.source_column_pitch, b.rows,
                       b.columns, shape.destination_element_bytes, digest);
    return;
  }
  if (turned && tiles && cast == kernels::Cast::kF32ToBf16) {  // Others are rare: by rows.
    kernels::CastTransposeF32ToBf16(destination, b.destination_pitch, source, b.source_column_pitch,
                                    b.rows, b.columns, digest);
    return;
  }
  for (size_t r = 0; r < b.rows; ++r) {
    const auto row = static_cast<int64_t>(r);
    const std::byte* const from = source + row * b.source_pitch;
    std::byte* const to = destination + row * b.destination_pitch;
    if (turned) {
      GatherRow(shape, from, b.source_column_pitch, to, b.columns, digest);
    } else {
      kernels::CastElements(*cast, to, from, b.columns, stores, digest);
    }
  }
}

uint64_t Stage(const RouteShape& shape, const std::byte* source, uint64_t begin, uint64_t end,
               std::byte* destination, Packing packing, Digests digests) {
  DigestStream digest(begin / kernels::kLeafBytes);
  DigestStream* const absorbs = digests == Digests::kOn ? &digest : nullptr;
  const Stores stores = packing == Packing::kPacked ? Stores::kCached : Stores::kStreaming;
  const uint64_t element = shape.destination_element_bytes;
  ForEachBlock(shape, static_cast<int64_t>(begin / element), static_cast<int64_t>(end / element),
               packing, [&](const PieceBlock& block) {
                 StageBlock(shape, block, source + block.source_offset,
                            destination + block.destination_offset, stores, absorbs);
               });
  return digests == Digests::kOn ? digest.sum() : 0;
}

}  // namespace

static_assert(kCutBytes % kernels::kLeafBytes == 0, "a piece is whole leaves");

uint64_t StagePacked(const RouteShape& shape, const std::byte* source, uint64_t begin, uint64_t end,
                     std::byte* slot, Digests digests) {
  return Stage(shape, source, begin, end, slot, Packing::kPacked, digests);
}

uint64_t StageInPlace(const RouteShape& shape, const std::byte* source, uint64_t begin,
                      uint64_t end, std::byte* destination, Digests digests) {
  return Stage(shape, source, begin, end, destination, Packing::kInPlace, digests);
}

uint64_t DigestSource(const RouteShape& shape, const std::byte* source, uint64_t begin,
                      uint64_t end) {
  DigestStream digest(begin / kernels::kLeafBytes);
  ForEachDirectRun(shape, begin, end, [&](uint64_t offset, uint64_t /*there*/, uint64_t size) {
    digest.Absorb(source + offset, size);
  });
  return digest.sum();
}

uint64_t DigestInPlace(const RouteShape& shape, const std::byte* destination, uint64_t begin,
                       uint64_t end) {
  DigestStream digest(begin / kernels::kLeafBytes);
  const uint64_t element = shape.destination_element_bytes;
  ForEachBlock(shape, static_cast<int64_t>(begin / element), static_cast<int64_t>(end / element),
               Packing::kInPlace, [&](const PieceBlock& block) {
                 kernels::AbsorbRows(destination + block.destination_offset,
                                     block.destination_pitch, block.rows, block.columns * element,
                                     &digest);
               });
  return digest.sum();
}

}  // namespace waybill
