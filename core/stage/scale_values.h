// SPDX-License-Identifier: Apache-2.0

// Computes the scales of one shard's blocks, in each update, where they are first needed.
#ifndef WAYBILL_CORE_STAGE_SCALE_VALUES_H_
#define WAYBILL_CORE_STAGE_SCALE_VALUES_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/exchange.h"
#include "core/stage/element_reader.h"
#include "core/tensor/box.h"
#include "kernels/block_grid.h"
#include "kernels/quantise_rule.h"

namespace waybill {

// Scales are computed in tiles of blocks. Most tiles are computed when somebody first needs one of
// their blocks, so that the elements are still in the cache when they are quantised. *Early* tiles
// have blocks that other trainers hold parts of, or that are too large for the cache. Tasks compute
// their maxima before anything is quantised by them, the maxima are combined with those of other
// trainers, and FinishEarly() turns them into scales.
//
// Each method says which threads may call it. Nothing allocates after the constructor.
class ScaleValues {
 public:
  // `source` is the shard's first element. `cells` has room for the table's stored scales. If host
  // code cannot read the elements, `reader` reads them, and all tiles are early. All arguments must
  // outlive the object.
  ScaleValues(const ScaleTable* table, const std::byte* source, std::byte* cells,
              ElementReader* reader = nullptr);

  // Marks blocks of which other trainers hold parts. Call it before the first update.
  void Share(const BlockRun& run);
  // Call it once, after the last Share().
  void PlanEarlyTasks();
  // Moves the shard's first element. Call it between updates, and not if a reader reads the shard.
  void SetSource(const std::byte* source) { source_ = source; }

  // [one thread, while no other calls anything] Begins an update: forgets everything.
  void Begin();

  // [any thread] Runs early task `i` of early_task_count(). Where a reader reads the elements there
  // are none: it combines the maxima of ForReader() instead.
  void RunEarlyTask(uint32_t i);
  uint32_t early_task_count() const { return static_cast<uint32_t>(tasks_.size()); }
  ElementReader::Shard ForReader() {
    return {table_, source_, rule_.type, rule_.via, values_.data()};
  }

  // [one thread, after all early tasks] Returns this shard's maximum of an early block, combines it
  // with another trainer's, and computes the scales of all early tiles.
  float maximum(uint32_t block) const { return values_[block]; }
  void CombineMaximum(uint32_t block, float maximum);
  void FinishEarly();

  // [any thread] Returns whether any of `blocks` (of the grid) is in an early tile.
  bool IsEarly(const Box& blocks) const;
  // [any thread] Computes the scales of `blocks` that are not known yet. Early ones must be
  // finished. The call may wait for another thread that is computing one of them.
  void Need(const Box& blocks);

  // Returns the factors of the row of blocks that `at` is in, from `at` on, as
  // kernels::QuantiseRows() takes them. Need() has been called for these blocks.
  const float* FactorsAt(absl::Span<const int64_t> at) const { return &values_[IndexOf(at)]; }
  // Returns the distance from one row of blocks to the next.
  std::ptrdiff_t factors_pitch() const {
    return static_cast<std::ptrdiff_t>(table_->blocks.extent(dimensions_ - 1));
  }
  const kernels::QuantiseRule& rule() const { return rule_; }
  const ScaleTable& table() const { return *table_; }

  // Returns the number of NaNs and infinities among this shard's elements, as far as scales have
  // been computed.
  uint64_t nonfinite() const { return nonfinite_.load(std::memory_order_relaxed); }
  // Takes over what was found where the same elements were quantised before.
  void TakeNonFinite(uint64_t found) {
    nonfinite_.store(std::max(nonfinite(), found), std::memory_order_relaxed);
  }

 private:
  enum class State : uint32_t { kUnknown, kClaimed, kKnown };
  // Neighbouring tiles of one row, or some rows of elements of it.
  struct Task {
    Box blocks;
    int64_t begin_row = 0;
    int64_t end_row = 0;
  };

  uint32_t IndexOf(absl::Span<const int64_t> block) const;
  Box TilesOf(const Box& blocks) const;
  uint32_t TileIndex(absl::Span<const int64_t> tile) const;
  Box BlocksOf(const Box& tiles) const;
  // Maxima of rows [begin_row, end_row) of the part of one row of blocks that this shard holds.
  void Combine(const Box& blocks, int64_t begin_row, int64_t end_row, float* maxima,
               std::ptrdiff_t pitch) const;
  void WorkOut(const Box& blocks);
  void Finish(const Box& blocks);
  void StoreScales(const Box& blocks, float* scales);
  void StoreCells(int64_t first, const float* scales, size_t count);
  void CountNonFiniteBlocks(const Box& blocks, const float* maxima);
  void CountNonFinite(absl::Span<const int64_t> block);
  const std::byte* ElementAt(absl::Span<const int64_t> at) const;
  template <typename Visit>
  void ForEachRowOfBlocks(const Box& blocks, Visit visit) const;

  const ScaleTable* table_;
  const std::byte* source_;
  std::byte* cells_;
  ElementReader* reader_;
  int dimensions_;
  Extents2 tile_;  // In blocks.
  Box tiles_;      // The tiles of the grid that overlap the shard.
  kernels::QuantiseRule rule_;
  kernels::ScaleRule scale_rule_;
  // For each block, its maximum until its tile is finished, then its factor.
  std::vector<float> values_;
  std::vector<std::atomic<State>> states_;  // One for each tile.
  std::vector<bool> is_early_;              // Likewise.
  bool any_early_ = false;
  std::vector<Task> tasks_;
  std::atomic<uint64_t> nonfinite_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_SCALE_VALUES_H_
