// SPDX-License-Identifier: Apache-2.0

#include "core/stage/scale_values.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/stage/cast_of.h"
#include "core/tensor/box_index.h"
#include "kernels/maxima.h"
#include "kernels/scale.h"
#include "kernels/scales.h"

namespace waybill {
namespace {

// A tile has about so many rows and columns of elements, unless a block is larger: a claim for each
// is little beside the work, and two passes over it stay in the second-level cache.
constexpr int64_t kTileElements = 128;
// Blocks of more elements than this are worked out by several tasks before they are used.
constexpr int64_t kLargestLateBlock = 1 << 20;
constexpr int64_t kTaskElements = 1 << 19;

kernels::Narrow NarrowOf(Dtype dtype) {
  return dtype == Dtype::kF8E4m3 ? kernels::Narrow::kE4m3 : kernels::Narrow::kE5m2;
}

kernels::Division DivisionOf(Division division) {
  switch (division) {
    case Division::kTimesReciprocal:
      return kernels::Division::kMultiplyByReciprocal;
    case Division::kTimesLargestOverMagnitude:
      return kernels::Division::kMultiplyByLargestOverMaximum;
    case Division::kDivide:
      return kernels::Division::kDivide;
  }
  return kernels::Division::kMultiplyByReciprocal;
}

kernels::ScaleRounding RoundingOf(ScaleRounding rounding) {
  switch (rounding) {
    case ScaleRounding::kNone:
      return kernels::ScaleRounding::kNone;
    case ScaleRounding::kPowerOfTwoUp:
      return kernels::ScaleRounding::kPowerOfTwoUp;
    case ScaleRounding::kFloorExponent:
      return kernels::ScaleRounding::kFloorExponent;
  }
  return kernels::ScaleRounding::kNone;
}

// For maxima, which are not negative.
bool AllFinite(const float* maxima, size_t count) {
  bool all = true;
  for (size_t i = 0; i < count; ++i) all &= maxima[i] <= std::numeric_limits<float>::max();
  return all;
}

}  // namespace

ScaleValues::ScaleValues(const ScaleTable* table, const std::byte* source, std::byte* cells,
                         ElementReader* reader)
    : table_(table),
      source_(source),
      cells_(cells),
      reader_(reader),
      dimensions_(table->blocks.dimensions()),
      tile_{std::max<int64_t>(1, kTileElements / table->block.rows),
            std::max<int64_t>(1, kTileElements / table->block.columns)},
      tiles_(CellsMeeting(table->blocks, tile_)) {
  const Quantisation& q = table->quantisation;
  rule_ = {.type = WideOf(table->source_dtype).value(),
           .via = WideOf(q.from).value(),
           .to = NarrowOf(q.dtype),
           .division = DivisionOf(q.division)};
  scale_rule_ = {.to = rule_.to,
                 .epsilon = q.epsilon,
                 .rounding = RoundingOf(q.rounding),
                 .division = rule_.division};
  const auto blocks = static_cast<size_t>(table->blocks.element_count());
  values_.resize(blocks);
  const auto tiles = static_cast<size_t>(tiles_.element_count());
  states_ = std::vector<std::atomic<State>>(tiles);
  is_early_.resize(tiles);
}

void ScaleValues::Share(const BlockRun& run) {
  std::array<int64_t, kMaxDimensions> at;
  for (uint32_t i = 0; i < run.count; ++i) {
    int64_t rest = run.first + i;
    for (int d = dimensions_ - 1; d >= 0; --d) {
      const int64_t extent = table_->blocks.extent(d);
      const int64_t within = table_->blocks.begin(d) + rest % extent;
      const int64_t tile = d == dimensions_ - 1   ? tile_.columns
                           : d == dimensions_ - 2 ? tile_.rows
                                                  : 1;
      at[static_cast<size_t>(d)] = within / tile;
      rest /= extent;
    }
    is_early_[TileIndex({at.data(), static_cast<size_t>(dimensions_)})] = true;
  }
}

void ScaleValues::PlanEarlyTasks() {
  if (reader_ != nullptr || table_->block.rows * table_->block.columns > kLargestLateBlock) {
    std::fill(is_early_.begin(), is_early_.end(), true);
  }
  any_early_ = std::find(is_early_.begin(), is_early_.end(), true) != is_early_.end();
  if (!any_early_ || reader_ != nullptr) return;
  const auto last = static_cast<size_t>(dimensions_) - 1;
  const int row = dimensions_ - 2, column = dimensions_ - 1;
  Box run;
  const auto finish = [&] {
    if (run.dimensions() == 0) return;
    const Box blocks = BlocksOf(run);
    const Box elements =
        Intersect(ElementsOf(blocks, table_->block, table_->box.ends()), table_->box);
    const int64_t rows =
        std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, elements.extent(column)));
    for (int64_t r = elements.begin(row); r < elements.end(row); r += rows) {
      tasks_.push_back({blocks, r, std::min(r + rows, elements.end(row))});
    }
    run = Box();
  };
  ForEachIndex(tiles_, [&](absl::Span<const int64_t> at) {
    if (at[last] == tiles_.begin(column) || !is_early_[TileIndex(at)]) finish();
    if (!is_early_[TileIndex(at)]) return;
    if (run.dimensions() == 0) {
      run = OneAt(at);
    } else {
      run.Set(column, run.begin(column), at[last] + 1);
    }
  });
  finish();
}

void ScaleValues::Begin() {
  std::fill(values_.begin(), values_.end(), 0.0f);
  for (auto& state : states_) state.store(State::kUnknown, std::memory_order_relaxed);
  nonfinite_.store(0, std::memory_order_relaxed);
}

// --- early tiles ---

void ScaleValues::RunEarlyTask(uint32_t i) {
  constexpr int64_t kAtATime = 1024;  // Blocks of a row, on the stack.
  const Task& task = tasks_[i];
  const int row = dimensions_ - 2, column = dimensions_ - 1;
  ForEachRowOfBlocks(task.blocks, [&](const Box& blocks) {
    const int64_t begin = std::max(task.begin_row, blocks.begin(row) * table_->block.rows);
    const int64_t end = std::min(task.end_row, blocks.end(row) * table_->block.rows);
    if (begin >= end) return;
    for (int64_t c = blocks.begin(column); c < blocks.end(column); c += kAtATime) {
      Box part = blocks;
      part.Set(column, c, std::min(c + kAtATime, blocks.end(column)));
      float maxima[kAtATime] = {};
      Combine(part, begin, end, maxima, kAtATime);
      const uint32_t first = IndexOf(part.begins());
      for (int64_t b = 0; b < part.extent(column); ++b) {
        // Tasks of one block may run at once.
        std::atomic_ref<float> maximum(values_[first + static_cast<size_t>(b)]);
        float old = maximum.load(std::memory_order_relaxed);
        while (!maximum.compare_exchange_weak(old, kernels::CombineMaximum(old, maxima[b]),
                                              std::memory_order_relaxed)) {
        }
      }
    }
  });
}

void ScaleValues::CombineMaximum(uint32_t block, float maximum) {
  values_[block] = kernels::CombineMaximum(values_[block], maximum);
}

void ScaleValues::FinishEarly() {
  if (!any_early_) return;
  ForEachIndex(tiles_, [&](absl::Span<const int64_t> at) {
    const uint32_t tile = TileIndex(at);
    if (!is_early_[tile]) return;
    const Box one = OneAt(at);
    Finish(BlocksOf(one));
    states_[tile].store(State::kKnown, std::memory_order_release);
  });
}

bool ScaleValues::IsEarly(const Box& blocks) const {
  if (!any_early_) return false;
  bool early = false;
  ForEachIndex(TilesOf(blocks),
               [&](absl::Span<const int64_t> at) { early = early || is_early_[TileIndex(at)]; });
  return early;
}

// --- the others ---

void ScaleValues::Need(const Box& blocks) {
  const int column = dimensions_ - 1;
  const auto last = static_cast<size_t>(column);
  const Box tiles = TilesOf(blocks);
  // Neighbouring tiles that are claimed here are worked out in one pass along their rows.
  Box run;
  const auto work_out = [&] {
    if (run.dimensions() == 0) return;
    WorkOut(BlocksOf(run));
    ForEachIndex(run, [&](absl::Span<const int64_t> at) {
      auto& state = states_[TileIndex(at)];
      state.store(State::kKnown, std::memory_order_release);
      state.notify_all();
    });
    run = Box();
  };
  ForEachIndex(tiles, [&](absl::Span<const int64_t> at) {
    if (at[last] == tiles.begin(column)) work_out();
    State expected = State::kUnknown;
    if (!states_[TileIndex(at)].compare_exchange_strong(expected, State::kClaimed,
                                                        std::memory_order_acquire)) {
      work_out();
      return;
    }
    if (run.dimensions() == 0) {
      run = OneAt(at);
    } else {
      run.Set(column, run.begin(column), at[last] + 1);
    }
  });
  work_out();
  // The thread that claimed a tile waits for nobody until it is known, so this ends.
  ForEachIndex(tiles, [&](absl::Span<const int64_t> at) {
    auto& state = states_[TileIndex(at)];
    for (State s = state.load(std::memory_order_acquire); s != State::kKnown;
         s = state.load(std::memory_order_acquire)) {
      state.wait(s, std::memory_order_acquire);
    }
  });
}

void ScaleValues::WorkOut(const Box& blocks) {
  const int row = dimensions_ - 2;
  ForEachRowOfBlocks(blocks, [&](const Box& part) {
    Combine(part, part.begin(row) * table_->block.rows, part.end(row) * table_->block.rows,
            &values_[IndexOf(part.begins())], factors_pitch());
  });
  Finish(blocks);
}

// --- blocks ---

template <typename Visit>
void ScaleValues::ForEachRowOfBlocks(const Box& blocks, Visit visit) const {
  Box firsts = blocks;
  const int column = dimensions_ - 1;
  firsts.Set(column, blocks.begin(column), blocks.begin(column) + 1);
  ForEachIndex(firsts, [&](absl::Span<const int64_t> at) {
    Box part = OneAt(at);
    part.Set(column, blocks.begin(column), blocks.end(column));
    visit(part);
  });
}

void ScaleValues::Combine(const Box& blocks, int64_t begin_row, int64_t end_row, float* maxima,
                          std::ptrdiff_t pitch) const {
  const int row = dimensions_ - 2, column = dimensions_ - 1;
  Box elements = blocks;
  elements.Set(row, begin_row, end_row);
  elements.Set(column, blocks.begin(column) * table_->block.columns,
               blocks.end(column) * table_->block.columns);
  elements = Intersect(elements, table_->box);
  if (elements.empty()) return;
  const auto rows_stride = table_->source_strides[static_cast<size_t>(row)];
  const kernels::BlockGrid grid = {
      .block_rows = static_cast<size_t>(table_->block.rows),
      .block_columns = static_cast<size_t>(table_->block.columns),
      .row_phase = static_cast<size_t>(elements.begin(row) % table_->block.rows),
      .column_phase = static_cast<size_t>(elements.begin(column) % table_->block.columns)};
  kernels::CombineMaxima(maxima, pitch, ElementAt(elements.begins()), rule_.type, rule_.via,
                         static_cast<std::ptrdiff_t>(rows_stride) *
                             static_cast<std::ptrdiff_t>(kernels::SizeBytes(rule_.type)),
                         static_cast<size_t>(elements.extent(row)),
                         static_cast<size_t>(elements.extent(column)), grid);
}

void ScaleValues::Finish(const Box& blocks) {
  constexpr int64_t kAtATime = 256;  // Blocks of a row.
  const int column = dimensions_ - 1;
  ForEachRowOfBlocks(blocks, [&](const Box& row) {
    Box part = row;
    for (int64_t c = row.begin(column); c < row.end(column); c += kAtATime) {
      part.Set(column, c, std::min(c + kAtATime, row.end(column)));
      const auto count = static_cast<size_t>(part.extent(column));
      float* const values = &values_[IndexOf(part.begins())];
      if (!AllFinite(values, count)) CountNonFiniteBlocks(part, values);
      float scales[kAtATime];
      kernels::ScalesOf(scales, values, values, count, scale_rule_);
      StoreScales(part, scales);
    }
  });
}

// Of some blocks of a row.
void ScaleValues::StoreScales(const Box& blocks, float* scales) {
  const Quantisation& q = table_->quantisation;
  const int column = dimensions_ - 1;
  const auto count = static_cast<size_t>(blocks.extent(column));
  if (q.stores_reciprocal) {
    for (size_t i = 0; i < count; ++i) scales[i] = 1.0f / scales[i];
  }
  if (table_->cells == table_->blocks) {
    StoreCells(RowMajorIndex(table_->cells, blocks.begins()), scales, count);
    return;
  }
  // Several stored scales for a block: each a run of one.
  const Extents2 cells_of_block = {table_->block.rows / table_->cell.rows,
                                   table_->block.columns / table_->cell.columns};
  ForEachIndex(blocks, [&](absl::Span<const int64_t> at) {
    const Box cells =
        Intersect(ElementsOf(OneAt(at), cells_of_block, table_->cells.ends()), table_->cells);
    const auto i = static_cast<size_t>(at[static_cast<size_t>(column)] - blocks.begin(column));
    ForEachIndex(cells, [&](absl::Span<const int64_t> cell) {
      StoreCells(RowMajorIndex(table_->cells, cell), &scales[i], 1);
    });
  });
}

void ScaleValues::StoreCells(int64_t first, const float* scales, size_t count) {
  if (table_->quantisation.scale_dtype != Dtype::kE8m0) {
    std::memcpy(cells_ + first * 4, scales, count * 4);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    cells_[first + static_cast<int64_t>(i)] = std::byte{kernels::ToE8m0(scales[i])};
  }
}

void ScaleValues::CountNonFiniteBlocks(const Box& blocks, const float* maxima) {
  const int column = dimensions_ - 1;
  ForEachIndex(blocks, [&](absl::Span<const int64_t> at) {
    const auto i = static_cast<size_t>(at[static_cast<size_t>(column)] - blocks.begin(column));
    if (!AllFinite(&maxima[i], 1)) CountNonFinite(at);
  });
}

void ScaleValues::CountNonFinite(absl::Span<const int64_t> block) {
  const int row = dimensions_ - 2, column = dimensions_ - 1;
  const Box one = OneAt(block);
  const Box elements = Intersect(ElementsOf(one, table_->block, table_->box.ends()), table_->box);
  if (elements.empty()) return;
  const auto pitch = table_->source_strides[static_cast<size_t>(row)] *
                     static_cast<int64_t>(kernels::SizeBytes(rule_.type));
  const auto rows = static_cast<size_t>(elements.extent(row));
  const auto columns = static_cast<size_t>(elements.extent(column));
  const std::byte* const first = ElementAt(elements.begins());
  nonfinite_.fetch_add(reader_ == nullptr
                           ? kernels::CountNonFinite(first, rule_.type, pitch, rows, columns)
                           : reader_->CountNonFinite(first, rule_.type, pitch, rows, columns),
                       std::memory_order_relaxed);
}

const std::byte* ScaleValues::ElementAt(absl::Span<const int64_t> at) const {
  int64_t elements = 0;
  for (int d = 0; d < dimensions_; ++d) {
    const auto i = static_cast<size_t>(d);
    elements += (at[i] - table_->box.begin(d)) * table_->source_strides[i];
  }
  return source_ + elements * static_cast<int64_t>(kernels::SizeBytes(rule_.type));
}

uint32_t ScaleValues::IndexOf(absl::Span<const int64_t> block) const {
  return static_cast<uint32_t>(RowMajorIndex(table_->blocks, block));
}

Box ScaleValues::TilesOf(const Box& blocks) const { return CellsMeeting(blocks, tile_); }

Box ScaleValues::BlocksOf(const Box& tiles) const {
  return Intersect(ElementsOf(tiles, tile_, table_->blocks.ends()), table_->blocks);
}

uint32_t ScaleValues::TileIndex(absl::Span<const int64_t> tile) const {
  return static_cast<uint32_t>(RowMajorIndex(tiles_, tile));
}

}  // namespace waybill
