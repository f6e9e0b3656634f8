// SPDX-License-Identifier: Apache-2.0

#include "core/engine/shared_chunks.h"

#include <algorithm>
#include <utility>

#include "core/base/narrow.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// So that two threads that pack never write to one cache line.
constexpr uint64_t kAlignmentBytes = 64;

}  // namespace

SharedChunks::~SharedChunks() {
  for (const Block& block : blocks_) (void)fabric_.Release(block.region.id);
}

SharedChunk* SharedChunks::Add(const std::string& content, uint64_t size_bytes, size_t pieces) {
  std::unique_ptr<SharedChunk>& chunk = chunks_[content];
  if (chunk == nullptr) {
    chunk = std::make_unique<SharedChunk>();
    chunk->content = content;
    chunk->size_bytes = size_bytes;
    chunk->result.sums.resize(pieces);
    chunk->result.nonfinite.resize(pieces);
  }
  ++chunk->users;
  return chunk.get();
}

void SharedChunks::Remove(SharedChunk* chunk) {
  if (--chunk->users > 0) return;
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) {
    return b.region.id == chunk->registration.region;
  });
  if (block != blocks_.end() && --block->chunks == 0) {
    (void)fabric_.Release(block->region.id);
    blocks_.erase(block);
  }
  chunks_.erase(std::string(chunk->content));  // The name ends with the chunk.
}

absl::Status SharedChunks::Reserve() {
  std::vector<SharedChunk*> lacking;
  uint64_t size_bytes = 0;
  for (const auto& [content, chunk] : chunks_) {
    if (chunk->users < 2 || chunk->memory.data != nullptr) continue;
    lacking.push_back(chunk.get());
    size_bytes += RoundUp(chunk->size_bytes, kAlignmentBytes);
  }
  if (lacking.empty()) return absl::OkStatus();
  WAYBILL_ASSIGN_OR_RETURN(const Region region,
                           fabric_.Allocate(size_bytes, "chunks that several receivers want"));
  blocks_.push_back({.region = region,
                     .number = ++blocks_made_,
                     .chunks = static_cast<uint32_t>(lacking.size())});
  uint64_t at = 0;
  for (SharedChunk* chunk : lacking) {
    chunk->memory = {.data = region.memory.data + at, .size_bytes = chunk->size_bytes};
    chunk->registration = {region.id, at};
    at += RoundUp(chunk->size_bytes, kAlignmentBytes);
  }
  return absl::OkStatus();
}

absl::Status SharedChunks::GrantTo(LaneId lane, uint64_t& granted) {
  for (const Block& block : blocks_) {
    if (block.number <= granted) continue;
    WAYBILL_RETURN_IF_ERROR(fabric_.Grant(lane, block.region.id));
  }
  granted = blocks_made_;
  return absl::OkStatus();
}

void SharedChunks::BeginImage(uint64_t image) {
  if (std::exchange(image_, image) == image) return;
  for (const auto& [content, chunk] : chunks_) {
    chunk->claimed = false;
    chunk->packed.store(false, std::memory_order_relaxed);
  }
}

ChunkSharing::ChunkSharing(Fabric* fabric, SharedChunks* shared, WorkPool* pool, Pack pack)
    : fabric_(*fabric),
      shared_(*shared),
      pool_(*pool),
      pack_(std::move(pack)),
      batch_([this](uint32_t i) { PackNext(i); },
             [this] {
               wave_is_over_.store(true, std::memory_order_release);
               fabric_.Wake();
             }) {}

void ChunkSharing::SetPlan(uint32_t chunk_count) {
  End();
  for (SharedChunk* chunk : chunks_) {
    if (chunk != nullptr) shared_.Remove(chunk);
  }
  chunks_.assign(chunk_count, nullptr);
  taken_.assign(chunk_count, false);
  own_.assign(chunk_count, false);
  wanted_.reserve(chunk_count);
  claimed_.reserve(chunk_count);
}

void ChunkSharing::Share(uint32_t chunk, const std::string& content, uint64_t size_bytes,
                         size_t pieces) {
  chunks_[chunk] = shared_.Add(content, size_bytes, pieces);
}

void ChunkSharing::Begin() {
  End();
  std::fill(taken_.begin(), taken_.end(), false);
  std::fill(own_.begin(), own_.end(), false);
}

bool ChunkSharing::Take(uint32_t chunk, Packed as) {
  SharedChunk* const shared = chunks_[chunk];
  if (shared == nullptr || shared->memory.data == nullptr) return false;
  const bool in_use = shared->claimed || shared->takers > 0;
  if (in_use && shared->as != as) return false;
  if (!in_use) shared->as = as;  // Otherwise a thread may be reading it.
  ++shared->takers;
  taken_[chunk] = true;
  wanted_.push_back(chunk);
  if (!shared->claimed) Claim(chunk);
  return true;
}

void ChunkSharing::Claim(uint32_t chunk) {
  chunks_[chunk]->claimed = own_[chunk] = true;
  claimed_.push_back(chunk);
}

bool ChunkSharing::BeginPacking() {
  if (wave_end_ == claimed_.size() || !wave_is_over_.load(std::memory_order_acquire)) return false;
  wave_begin_ = std::exchange(wave_end_, claimed_.size());
  wave_is_over_.store(false, std::memory_order_relaxed);
  pool_.Run(batch_, static_cast<uint32_t>(wave_end_ - wave_begin_));
  return true;
}

// On any thread.
void ChunkSharing::PackNext(uint32_t index) {
  const uint32_t chunk = claimed_[wave_begin_ + index];
  SharedChunk& shared = *chunks_[chunk];
  pack_(chunk, shared.as, {shared.memory.data, shared.size_bytes}, shared.result);
  shared.packed.store(true, std::memory_order_release);
  fabric_.Wake();
}

void ChunkSharing::ForEachPacked(absl::FunctionRef<void(uint32_t chunk, bool own)> visit) {
  for (; visited_ < wanted_.size(); ++visited_) {
    const uint32_t chunk = wanted_[visited_];
    if (!chunks_[chunk]->packed.load(std::memory_order_acquire)) break;
    visit(chunk, own_[chunk]);
  }
  if (std::exchange(given_up_, shared_.given_up()) == shared_.given_up()) return;
  for (size_t i = visited_; i < wanted_.size(); ++i) {
    if (!chunks_[wanted_[i]]->claimed) Claim(wanted_[i]);
  }
}

void ChunkSharing::End() {
  pool_.Cancel(batch_);
  bool gave_up = false;
  for (const uint32_t chunk : claimed_) {
    if (chunks_[chunk]->packed.load(std::memory_order_relaxed)) continue;
    chunks_[chunk]->claimed = false;
    gave_up = true;
  }
  for (const uint32_t chunk : wanted_) --chunks_[chunk]->takers;
  claimed_.clear();
  wanted_.clear();
  visited_ = wave_begin_ = wave_end_ = 0;
  wave_is_over_.store(true, std::memory_order_relaxed);
  if (!gave_up) return;
  shared_.GiveUp();
  fabric_.Wake();
}

}  // namespace waybill
