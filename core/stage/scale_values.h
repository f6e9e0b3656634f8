// The scales of one shard's blocks, worked out for each update where they are first needed.
#ifndef WAYBILL_CORE_STAGE_SCALE_VALUES_H_
#define WAYBILL_CORE_STAGE_SCALE_VALUES_H_

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

// Blocks are worked out in tiles. Most tiles are when somebody first needs one of their blocks, so
// that the elements are still in the cache when they are quantised. *Early* tiles are those with
// blocks that other trainers hold parts of, or that are too large for that: they are worked out
// before anything is quantised by them, in tasks; their maxima may be combined with others'; then
// they are finished.
//
// Thread-safe as said. Allocates nothing after the constructor.
class ScaleValues {
 public:
  // `source` is the shard's first element; `cells` has room for the table's stored scales. Where
  // host code cannot read the elements, `reader` does; all tiles are early then. All of them
  // outlive this.
  ScaleValues(const ScaleTable* table, const std::byte* source, std::byte* cells,
              ElementReader* reader = nullptr);

  // Before the first update: blocks of which other trainers hold parts.
  void Share(const BlockRun& run);
  void PlanEarlyTasks();  // Once all that are shared are known.

  // A new update: forgets everything. [one thread, while no other is here]
  void Begin();

  // [any thread] Early task `i` of early_task_count().
  void RunEarlyTask(uint32_t i);
  uint32_t early_task_count() const { return static_cast<uint32_t>(tasks_.size()); }

  // [one thread] After all early tasks: this shard's maxima of early blocks, and what others say.
  float maximum(uint32_t block) const { return values_[block]; }
  void CombineMaximum(uint32_t block, float maximum);
  void FinishEarly();

  // [any thread] Whether any of `blocks` (of the grid) is in an early tile.
  bool IsEarly(const Box& blocks) const;
  // [any thread] Makes sure that the scales of `blocks` are there. Those that are early have been
  // finished. May wait for another thread that is working one out.
  void Need(const Box& blocks);

  // Of blocks that were needed: factors as kernels::QuantiseRows() takes them, of the matrix's row
  // of blocks that `at` is in, from `at` on.
  const float* FactorsAt(absl::Span<const int64_t> at) const { return &values_[IndexOf(at)]; }
  // From row to row of blocks.
  std::ptrdiff_t factors_pitch() const {
    return static_cast<std::ptrdiff_t>(table_->blocks.extent(dimensions_ - 1));
  }
  const kernels::QuantiseRule& rule() const { return rule_; }
  const ScaleTable& table() const { return *table_; }

  // NaNs and infinities among this shard's elements, as far as scales were worked out.
  uint64_t nonfinite() const { return nonfinite_.load(std::memory_order_relaxed); }

 private:
  enum class State : uint32_t { kUnknown, kClaimed, kKnown };
  // Neighbouring tiles of one row, or some rows of elements of it; to a reader, all there are.
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
  Box tiles_;      // Of the grid of tiles, that meet the shard.
  kernels::QuantiseRule rule_;
  kernels::ScaleRule scale_rule_;
  // Of each block: its maximum until its tile is finished, then its factor.
  std::vector<float> values_;
  std::vector<std::atomic<State>> states_;  // Of each tile.
  std::vector<bool> is_early_;              // Likewise.
  bool any_early_ = false;
  std::vector<Task> tasks_;
  std::atomic<uint64_t> nonfinite_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_SCALE_VALUES_H_
