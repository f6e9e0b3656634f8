// SPDX-License-Identifier: Apache-2.0

#include "core/stage/quantise_piece.h"

#include "core/stage/piece_walk.h"
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

uint64_t Quantise(const RouteShape& shape, const Box& box, ScaleValues& scales,
                  const std::byte* source, uint64_t begin, uint64_t end, std::byte* destination,
                  Packing packing, Digests digests) {
  DigestStream digest(begin / kernels::kLeafBytes);
  DigestStream* const absorbs = digests == Digests::kOn ? &digest : nullptr;
  const Stores stores = packing == Packing::kPacked ? Stores::kCached : Stores::kStreaming;
  ForEachQuantisedBlock(shape, box, scales.table().block, kBandRows, static_cast<int64_t>(begin),
                        static_cast<int64_t>(end), packing, [&](const QuantisedBlock& block) {
                          const PieceBlock& place = block.place;
                          scales.Need(block.blocks);
                          kernels::QuantiseRows(
                              destination + place.destination_offset, place.destination_pitch,
                              source + place.source_offset, place.source_pitch, place.rows,
                              place.columns, block.grid, scales.FactorsAt(block.blocks.begins()),
                              scales.factors_pitch(), scales.rule(), stores, absorbs);
                        });
  return digests == Digests::kOn ? digest.sum() : 0;
}

}  // namespace

uint64_t QuantisePacked(const RouteShape& shape, const Box& box, ScaleValues& scales,
                        const std::byte* source, uint64_t begin, uint64_t end, std::byte* slot,
                        Digests digests) {
  return Quantise(shape, box, scales, source, begin, end, slot, Packing::kPacked, digests);
}

uint64_t QuantiseInPlace(const RouteShape& shape, const Box& box, ScaleValues& scales,
                         const std::byte* source, uint64_t begin, uint64_t end,
                         std::byte* destination, Digests digests) {
  return Quantise(shape, box, scales, source, begin, end, destination, Packing::kInPlace, digests);
}

}  // namespace waybill
