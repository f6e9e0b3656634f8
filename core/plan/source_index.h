// Indexes what the trainers hold: every distinct box of every tensor, with its holders.
#ifndef WAYBILL_CORE_PLAN_SOURCE_INDEX_H_
#define WAYBILL_CORE_PLAN_SOURCE_INDEX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor/box.h"
#include "core/tensor/manifest.h"

namespace waybill {

// One trainer's copy of a source.
struct Holder {
  uint32_t trainer = 0;
  uint32_t shard = 0;
};

// A box that one or more trainers hold.
struct Source {
  Box box;
  uint32_t tensor = 0;
  uint32_t holders_begin = 0;  // The first of its holders in SourceIndex::holders.
  uint32_t holders_end = 0;
  uint32_t holder_set = 0;  // Equal for sources that the same trainers hold.
};

// Immutable once built. Refers to the manifests, which outlive it.
class SourceIndex {
 public:
  // kInvalidArgument: two trainers declare one tensor with different shapes.
  static absl::StatusOr<SourceIndex> Build(absl::Span<const Manifest* const> trainers);

  // Finds a tensor by name or alias. Returns nullopt if no trainer declares it.
  const uint32_t* FindTensor(absl::string_view name) const;
  absl::Span<const int64_t> shape(uint32_t tensor) const { return tensors_[tensor].shape; }

  // Calls visit(source index) for each source of the tensor that meets `box`, in a fixed order.
  template <typename Visit>
  void ForEachMeeting(uint32_t tensor, const Box& box, Visit visit) const {
    const Tensor& t = tensors_[tensor];
    const auto [first, last] = Candidates(t, box);
    for (uint32_t s = first; s < last; ++s) {
      if (!Intersect(sources_[s].box, box).empty()) visit(s);
    }
  }

  const Source& source(uint32_t i) const { return sources_[i]; }
  absl::Span<const Holder> holders(const Source& source) const {
    return absl::MakeConstSpan(holders_).subspan(source.holders_begin,
                                                 source.holders_end - source.holders_begin);
  }
  // The trainers of each set, in order of rank.
  const std::vector<std::vector<uint32_t>>& holder_sets() const { return holder_sets_; }

  // "trainer 0 [0, 8), trainer 1 [8, 16)", cut short after a few.
  std::string DescribeHolders(uint32_t tensor) const;

 private:
  struct Tensor {
    absl::Span<const int64_t> shape;
    uint32_t declared_by = 0;  // A trainer.
    uint32_t first = 0;        // Sources [first, last).
    uint32_t last = 0;
    int sort_dimension = 0;  // Along which the sources are sorted: the one with the most cuts.
    int64_t longest = 0;     // Extent of a source along it.
  };
  struct Entry;

  absl::Status AddTensors(absl::Span<const Manifest* const> trainers);
  std::vector<Entry> CollectShards(absl::Span<const Manifest* const> trainers) const;
  void GroupSources(absl::Span<const Manifest* const> trainers, std::vector<Entry> entries);
  void SortSources(Tensor& tensor);
  std::pair<uint32_t, uint32_t> Candidates(const Tensor& tensor, const Box& box) const;

  absl::flat_hash_map<absl::string_view, uint32_t> names_;
  std::vector<Tensor> tensors_;
  std::vector<Source> sources_;
  std::vector<Holder> holders_;
  std::vector<std::vector<uint32_t>> holder_sets_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_SOURCE_INDEX_H_
