// SPDX-License-Identifier: Apache-2.0

// The tensors of a plan, grouped into classes: the same ranks hold and want the same parts of all
// tensors of a class.
#ifndef WAYBILL_CORE_PLAN_TENSOR_CLASSES_H_
#define WAYBILL_CORE_PLAN_TENSOR_CLASSES_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/plan/rank_classes.h"

namespace waybill {

// A shard of a tensor, in the manifest of a class of ranks.
struct Holding {
  uint32_t rank_class = 0;
  uint32_t shard = 0;
};

// The tensors that receivers want, with the senders' and the receivers' shards of each. The tensors
// of one class have one shape, and their shards agree in everything but region and offset, in the
// order of their lists. There are few classes, because the layers of a model are similar, and so
// are its experts. A class that some receiver wants quantised is split into as many classes as
// there are replicas, so that one set of replicas sends all parts of a class.
//
// Immutable. Both sides must outlive the object.
class TensorClasses {
 public:
  // kInvalidArgument: two senders declare one tensor with different shapes; a receiver wants a
  // tensor that no sender declares, or with another shape.
  static absl::StatusOr<TensorClasses> Build(const RankClasses& senders,
                                             const RankClasses& receivers);

  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }
  // Returns the numbers of a class's tensors. The first tensor represents the class.
  absl::Span<const uint32_t> members(uint32_t tensor_class) const { return members_[tensor_class]; }
  uint32_t first(uint32_t tensor_class) const { return members_[tensor_class].front(); }

  // Tensors are numbered in the order in which the senders declare them.
  absl::string_view name(uint32_t tensor) const { return tensors_[tensor].name; }
  absl::Span<const int64_t> shape(uint32_t tensor) const { return tensors_[tensor].shape; }
  // Return a tensor's non-empty shards, sorted by class of ranks and shard.
  absl::Span<const Holding> held(uint32_t tensor) const { return held_.Of(tensor); }
  absl::Span<const Holding> wanted(uint32_t tensor) const { return wanted_.Of(tensor); }

 private:
  struct Tensor {
    absl::string_view name;
    absl::Span<const int64_t> shape;
    uint32_t declared_by = 0;  // The sender that declared the tensor first.
  };
  // One list for each tensor, stored one after the other.
  struct Lists {
    std::vector<uint32_t> ends;
    std::vector<Holding> items;

    absl::Span<const Holding> Of(uint32_t tensor) const {
      const uint32_t begin = tensor == 0 ? 0 : ends[tensor - 1];
      return absl::MakeConstSpan(items).subspan(begin, ends[tensor] - begin);
    }
  };
  // By tensor of a manifest: its number, or kUnknown.
  using Numbers = std::vector<uint32_t>;

  absl::Status NameTensors(const RankClasses& senders, std::vector<Numbers>& numbers);
  // Returns the senders' tensor name with the longest common suffix with `name`.
  absl::string_view Nearest(absl::string_view name) const;
  absl::Status FindWanted(const RankClasses& receivers, std::vector<Numbers>& numbers) const;
  // Finds a receiver's tensors by their aliases, if they were not found by name. `numbers` holds
  // the result of the search by name.
  absl::Status FindByAliases(const Manifest& manifest, uint32_t receiver, Numbers& numbers) const;
  static Lists MakeLists(const RankClasses& ranks, const std::vector<Numbers>& numbers,
                         uint32_t tensor_count, const Lists* wanted);
  void Classify(const RankClasses& senders, const RankClasses& receivers);
  void DivideAmongReplicas(const RankClasses& senders, const RankClasses& receivers);
  size_t HashOf(uint32_t tensor, const RankClasses& senders, const RankClasses& receivers) const;
  bool AreAlike(uint32_t a, uint32_t b, const RankClasses& senders,
                const RankClasses& receivers) const;

  absl::flat_hash_map<absl::string_view, uint32_t> names_;
  std::vector<Tensor> tensors_;
  Lists held_;
  Lists wanted_;
  std::vector<std::vector<uint32_t>> members_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_TENSOR_CLASSES_H_
