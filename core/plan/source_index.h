// SPDX-License-Identifier: Apache-2.0

// Indexes the senders' shards: every distinct box of every class of tensors, with its holders.
#ifndef WAYBILL_CORE_PLAN_SOURCE_INDEX_H_
#define WAYBILL_CORE_PLAN_SOURCE_INDEX_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/rank_classes.h"
#include "core/plan/tensor_classes.h"
#include "core/tensor/box.h"

namespace waybill {

// One sender's copy of a source.
struct Holder {
  uint32_t sender = 0;
  uint32_t holding = 0;  // The index of its shard in TensorClasses::held().
};

// A box that one or more senders hold.
struct Source {
  Box box;
  uint32_t tensor_class = 0;
  uint32_t holders_begin = 0;  // The source's range of SourceIndex::holders_.
  uint32_t holders_end = 0;
  uint32_t holder_set = 0;  // Equal for sources with the same holders.
};

// Immutable. The arguments of the constructor must outlive the index.
class SourceIndex {
 public:
  SourceIndex(const TensorClasses& tensors, const RankClasses& senders);

  // Calls visit(source index) for each source of the class that intersects `box`, in a fixed order.
  template <typename Visit>
  void ForEachMeeting(uint32_t tensor_class, const Box& box, Visit visit) const {
    const Sources& of = by_class_[tensor_class];
    const auto [first, last] = Candidates(of, box);
    for (uint32_t s = first; s < last; ++s) {
      if (!Intersect(sources_[s].box, box).empty()) visit(s);
    }
  }

  const TensorClasses& tensors() const { return tensors_; }
  const RankClasses& senders() const { return senders_; }
  const Source& source(uint32_t i) const { return sources_[i]; }
  absl::Span<const Holder> holders(const Source& source) const {
    return absl::MakeConstSpan(holders_).subspan(source.holders_begin,
                                                 source.holders_end - source.holders_begin);
  }
  // Returns the holder's shard of the class's first tensor.
  ShardView shard(const Source& source, const Holder& holder) const;
  uint32_t shard_index(const Source& source, const Holder& holder) const;

  // Returns the senders of each holder set, in order of rank.
  const std::vector<std::vector<uint32_t>>& holder_sets() const { return holder_sets_; }

  // Returns text such as "trainer 0 [0, 8), trainer 1 [8, 16)", cut off after a few holders.
  std::string DescribeHolders(uint32_t tensor_class) const;

 private:
  // The sources of one class: [first, last) of sources_.
  struct Sources {
    uint32_t first = 0;
    uint32_t last = 0;
    // The dimension along which the sources are sorted: the one with the most cuts.
    int sort_dimension = 0;
    int64_t longest = 0;  // The largest extent of a source along sort_dimension.
  };

  void AddSources(uint32_t tensor_class);
  void AddHolders(absl::Span<const Holding> held, absl::Span<const uint32_t> alike);
  void Sort(Sources& of, int dimensions);
  std::pair<uint32_t, uint32_t> Candidates(const Sources& of, const Box& box) const;

  const TensorClasses& tensors_;
  const RankClasses& senders_;
  std::vector<Sources> by_class_;
  std::vector<Source> sources_;
  std::vector<Holder> holders_;
  std::vector<std::vector<uint32_t>> holder_sets_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_SOURCE_INDEX_H_
