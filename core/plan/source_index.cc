#include "core/plan/source_index.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {

struct SourceIndex::Entry {
  uint32_t tensor;
  uint32_t trainer;
  uint32_t shard;
};

namespace {

bool BoxLess(const Box& a, const Box& b) {
  const auto begins_a = a.begins(), begins_b = b.begins();
  for (size_t d = 0; d < begins_a.size(); ++d) {
    if (begins_a[d] != begins_b[d]) return begins_a[d] < begins_b[d];
  }
  const auto ends_a = a.ends(), ends_b = b.ends();
  for (size_t d = 0; d < ends_a.size(); ++d) {
    if (ends_a[d] != ends_b[d]) return ends_a[d] < ends_b[d];
  }
  return false;
}

}  // namespace

absl::StatusOr<SourceIndex> SourceIndex::Build(absl::Span<const Manifest* const> trainers) {
  SourceIndex index;
  WAYBILL_RETURN_IF_ERROR(index.AddTensors(trainers));
  index.GroupSources(trainers, index.CollectShards(trainers));
  for (Tensor& tensor : index.tensors_) index.SortSources(tensor);
  return index;
}

absl::Status SourceIndex::AddTensors(absl::Span<const Manifest* const> trainers) {
  for (uint32_t rank = 0; rank < trainers.size(); ++rank) {
    const Manifest& manifest = *trainers[rank];
    for (uint32_t i = 0; i < manifest.tensor_count(); ++i) {
      const auto [known, is_new] =
          names_.try_emplace(manifest.tensor_name(i), static_cast<uint32_t>(tensors_.size()));
      if (is_new) {
        tensors_.push_back({.shape = manifest.tensor_shape(i), .declared_by = rank});
        continue;
      }
      const Tensor& tensor = tensors_[known->second];
      if (tensor.shape != manifest.tensor_shape(i)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor \"", manifest.tensor_name(i), "\": trainer ", rank, " has shape ",
                         ShapeToString(manifest.tensor_shape(i)), ", trainer ", tensor.declared_by,
                         " has ", ShapeToString(tensor.shape)));
      }
    }
  }
  for (const Manifest* manifest : trainers) {
    for (uint32_t i = 0; i < manifest->alias_count(); ++i) {
      // A copy: adding a name may move what a reference to the other's number would point at.
      const uint32_t tensor = names_.at(manifest->tensor_name(manifest->alias_tensor(i)));
      names_.try_emplace(manifest->alias_name(i), tensor);
    }
  }
  return absl::OkStatus();
}

std::vector<SourceIndex::Entry> SourceIndex::CollectShards(
    absl::Span<const Manifest* const> trainers) const {
  std::vector<Entry> entries;
  for (uint32_t rank = 0; rank < trainers.size(); ++rank) {
    const Manifest& manifest = *trainers[rank];
    std::vector<uint32_t> tensor_ids(manifest.tensor_count());
    for (uint32_t i = 0; i < manifest.tensor_count(); ++i) {
      tensor_ids[i] = names_.at(manifest.tensor_name(i));
    }
    for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
      const ShardView shard = manifest.shard(i);
      if (!shard.box.empty()) entries.push_back({tensor_ids[shard.tensor_index], rank, i});
    }
  }
  return entries;
}

void SourceIndex::GroupSources(absl::Span<const Manifest* const> trainers,
                               std::vector<Entry> entries) {
  const auto box_of = [&](const Entry& e) { return trainers[e.trainer]->shard(e.shard).box; };
  std::sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    const Box box_a = box_of(a), box_b = box_of(b);
    if (!(box_a == box_b)) return BoxLess(box_a, box_b);
    return std::pair(a.trainer, a.shard) < std::pair(b.trainer, b.shard);
  });
  absl::flat_hash_map<std::vector<uint32_t>, uint32_t> set_ids;
  std::vector<uint32_t> set;
  for (size_t i = 0; i < entries.size();) {
    const uint32_t tensor = entries[i].tensor;
    Source source{.box = box_of(entries[i]),
                  .tensor = tensor,
                  .holders_begin = static_cast<uint32_t>(holders_.size())};
    set.clear();
    for (; i < entries.size() && entries[i].tensor == tensor && box_of(entries[i]) == source.box;
         ++i) {
      if (!set.empty() && set.back() == entries[i].trainer) continue;
      set.push_back(entries[i].trainer);
      holders_.push_back({entries[i].trainer, entries[i].shard});
    }
    source.holders_end = static_cast<uint32_t>(holders_.size());
    const auto [id, is_new] = set_ids.try_emplace(set, static_cast<uint32_t>(holder_sets_.size()));
    if (is_new) holder_sets_.push_back(set);
    source.holder_set = id->second;
    Tensor& of = tensors_[tensor];
    if (of.first == of.last) of.first = static_cast<uint32_t>(sources_.size());
    sources_.push_back(source);
    of.last = static_cast<uint32_t>(sources_.size());
  }
}

void SourceIndex::SortSources(Tensor& tensor) {
  const auto begin = sources_.begin() + tensor.first, end = sources_.begin() + tensor.last;
  size_t most_cuts = 0;
  std::vector<int64_t> cuts;
  for (int d = 0; d < static_cast<int>(tensor.shape.size()); ++d) {
    cuts.clear();
    for (auto s = begin; s != end; ++s) cuts.push_back(s->box.begin(d));
    std::sort(cuts.begin(), cuts.end());
    const auto count = static_cast<size_t>(std::unique(cuts.begin(), cuts.end()) - cuts.begin());
    if (count > most_cuts) {
      most_cuts = count;
      tensor.sort_dimension = d;
    }
  }
  if (tensor.shape.empty()) return;
  const int d = tensor.sort_dimension;
  std::stable_sort(begin, end, [d](const Source& a, const Source& b) {
    return a.box.begin(d) < b.box.begin(d);
  });
  for (auto s = begin; s != end; ++s) tensor.longest = std::max(tensor.longest, s->box.extent(d));
}

std::pair<uint32_t, uint32_t> SourceIndex::Candidates(const Tensor& tensor, const Box& box) const {
  if (box.dimensions() == 0) return {tensor.first, tensor.last};
  const int d = tensor.sort_dimension;
  const auto begin = sources_.begin() + tensor.first, end = sources_.begin() + tensor.last;
  const auto starts_before = [d](const Source& s, int64_t at) { return s.box.begin(d) < at; };
  const auto first = std::lower_bound(begin, end, box.begin(d) - tensor.longest + 1, starts_before);
  const auto last = std::lower_bound(first, end, box.end(d), starts_before);
  return {static_cast<uint32_t>(first - sources_.begin()),
          static_cast<uint32_t>(last - sources_.begin())};
}

const uint32_t* SourceIndex::FindTensor(absl::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : &found->second;
}

std::string SourceIndex::DescribeHolders(uint32_t tensor) const {
  constexpr uint32_t kShown = 4;
  const Tensor& t = tensors_[tensor];
  if (t.first == t.last) return "nothing of it";
  std::string text;
  for (uint32_t s = t.first; s < t.last && s < t.first + kShown; ++s) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "trainer ",
                    holders(sources_[s]).front().trainer, " ", ToString(sources_[s].box));
  }
  if (t.last - t.first > kShown)
    absl::StrAppend(&text, " and ", t.last - t.first - kShown, " more");
  return text;
}

}  // namespace waybill
