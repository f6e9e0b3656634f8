#include "core/engine/staged_routes.h"

#include <algorithm>
#include <utility>

#include "kernels/copy.h"
#include "kernels/digest.h"

namespace waybill {

StagedRoutes::StagedRoutes(RouteTable routes, std::vector<MemorySpan> sources, uint64_t chunk_bytes)
    : routes_(std::move(routes)),
      sources_(std::move(sources)),
      list_(CutIntoChunks(routes_, chunk_bytes)),
      sums_(routes_.size()) {
  for (const Chunk& chunk : list_.chunks) {
    chunk_writes_.clear();
    AppendWrites(routes_, list_, chunk, chunk_writes_);
    most_writes_ = std::max(most_writes_, chunk_writes_.size());
  }
  chunk_writes_.reserve(most_writes_);
}

void StagedRoutes::Begin(const UpdateId& update, Digests digests) {
  update_ = update;
  digests_ = digests;
  for (auto& sum : sums_) sum.store(0, std::memory_order_relaxed);
}

void StagedRoutes::AppendWritesOf(const Chunk& chunk, const BufferAccess& buffer, RegionId ring,
                                  uint64_t slot_offset, std::vector<Write>& writes) {
  chunk_writes_.clear();
  AppendWrites(routes_, list_, chunk, chunk_writes_);
  for (const ChunkWrite& write : chunk_writes_) {
    const RegionAccess& region = buffer.regions[write.destination_region];
    writes.push_back(
        {.source = ring,
         .source_offset_bytes = slot_offset + write.slot_offset_bytes,
         .destination = region.remote,
         .destination_offset_bytes = region.offset_bytes + write.destination_offset_bytes,
         .size_bytes = write.size_bytes});
  }
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

void StagedRoutes::FillLedger(uint32_t first, uint32_t count, LedgerEntry* entries) const {
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t length = routes_.shape(first + i).size_bytes();
    const uint64_t sum = sums_[first + i].load(std::memory_order_acquire);
    entries[i] = {.sequence = LedgerSequence(update_),
                  .length_bytes = length,
                  .digest = digests_ == Digests::kOn ? kernels::FinishDigest(sum, length) : 0};
  }
}

}  // namespace waybill
