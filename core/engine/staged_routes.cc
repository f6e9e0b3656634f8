#include "core/engine/staged_routes.h"

#include <utility>

#include "kernels/copy.h"
#include "kernels/digest.h"

namespace waybill {

StagedRoutes::StagedRoutes(RouteTable routes, std::vector<MemorySpan> sources, uint64_t chunk_bytes)
    : routes_(std::move(routes)),
      sources_(std::move(sources)),
      list_(CutIntoChunks(routes_, chunk_bytes)),
      sums_(routes_.size()) {}

void StagedRoutes::Begin(const UpdateId& update, Digests digests) {
  update_ = update;
  digests_ = digests;
  for (auto& sum : sums_) sum.store(0, std::memory_order_relaxed);
}

bool StagedRoutes::IsMapped(uint32_t chunk, const BufferAccess& buffer) const {
  for (const Piece& piece : list_.pieces_of(list_.chunks[chunk])) {
    if (buffer.regions[routes_.destination_region(piece.route)].mapped == nullptr) return false;
  }
  return true;
}

void StagedRoutes::StageInPlace(uint32_t chunk, const BufferAccess& buffer) {
  for (const Piece& piece : list_.pieces_of(list_.chunks[chunk])) {
    std::byte* destination = buffer.regions[routes_.destination_region(piece.route)].mapped +
                             routes_.destination_offset(piece.route);
    const uint64_t sum = waybill::StageInPlace(routes_.shape(piece.route), SourceOf(piece.route),
                                               piece.begin, piece.end, destination, digests_);
    sums_[piece.route].fetch_add(sum, std::memory_order_relaxed);
  }
  kernels::StreamFence();
}

void StagedRoutes::StagePacked(uint32_t chunk, std::byte* slot) {
  for (const Piece& piece : list_.pieces_of(list_.chunks[chunk])) {
    const uint64_t sum = waybill::StagePacked(routes_.shape(piece.route), SourceOf(piece.route),
                                              piece.begin, piece.end, slot, digests_);
    sums_[piece.route].fetch_add(sum, std::memory_order_relaxed);
    slot += piece.size_bytes();
  }
  kernels::StreamFence();
}

LedgerEntry StagedRoutes::EntryOf(uint32_t route) const {
  const uint64_t length = routes_.shape(route).size_bytes();
  const uint64_t sum = sums_[route].load(std::memory_order_acquire);
  return {.sequence = LedgerSequence(update_),
          .length_bytes = length,
          .digest = digests_ == Digests::kOn ? kernels::FinishDigest(sum, length) : 0};
}

}  // namespace waybill
