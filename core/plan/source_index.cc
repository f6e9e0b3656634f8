// SPDX-License-Identifier: Apache-2.0

#include "core/plan/source_index.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

bool BoxLess(const Box& a, const Box& b) {
  return std::pair(a.begins(), a.ends()) < std::pair(b.begins(), b.ends());
}

}  // namespace

SourceIndex::SourceIndex(const TensorClasses& tensors, const RankClasses& senders)
    : tensors_(tensors), senders_(senders) {
  by_class_.resize(tensors.size());
  for (uint32_t c = 0; c < tensors.size(); ++c) AddSources(c);
  absl::flat_hash_map<std::vector<uint32_t>, uint32_t> set_ids;
  std::vector<uint32_t> set;
  for (Source& source : sources_) {
    set.clear();
    for (const Holder& holder : holders(source)) set.push_back(holder.sender);
    const auto [id, is_new] = set_ids.try_emplace(set, static_cast<uint32_t>(holder_sets_.size()));
    if (is_new) holder_sets_.push_back(set);
    source.holder_set = id->second;
  }
}

void SourceIndex::AddSources(uint32_t tensor_class) {
  const auto held = tensors_.held(tensors_.first(tensor_class));
  std::vector<Box> boxes;
  for (const Holding& h : held) {
    boxes.push_back(senders_.manifest(h.rank_class).shard(h.shard).box);
  }
  std::vector<uint32_t> order(held.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return BoxLess(boxes[a], boxes[b]); });
  Sources& of = by_class_[tensor_class];
  of.first = static_cast<uint32_t>(sources_.size());
  for (size_t i = 0; i < order.size();) {
    const size_t begin = i;
    while (i < order.size() && boxes[order[i]] == boxes[order[begin]]) ++i;
    Source source{.box = boxes[order[begin]],
                  .tensor_class = tensor_class,
                  .holders_begin = static_cast<uint32_t>(holders_.size())};
    AddHolders(held, absl::MakeConstSpan(order).subspan(begin, i - begin));
    source.holders_end = static_cast<uint32_t>(holders_.size());
    sources_.push_back(source);
  }
  of.last = static_cast<uint32_t>(sources_.size());
  Sort(of, static_cast<int>(tensors_.shape(tensors_.first(tensor_class)).size()));
}

// A sender that holds one box twice counts once.
void SourceIndex::AddHolders(absl::Span<const Holding> held, absl::Span<const uint32_t> alike) {
  const auto begin = static_cast<std::ptrdiff_t>(holders_.size());
  for (const uint32_t holding : alike) {
    for (const uint32_t sender : senders_.ranks(held[holding].rank_class)) {
      holders_.push_back({sender, holding});
    }
  }
  std::sort(holders_.begin() + begin, holders_.end(), [&](const Holder& a, const Holder& b) {
    return std::pair(a.sender, held[a.holding].shard) < std::pair(b.sender, held[b.holding].shard);
  });
  const auto last =
      std::unique(holders_.begin() + begin, holders_.end(),
                  [](const Holder& a, const Holder& b) { return a.sender == b.sender; });
  holders_.erase(last, holders_.end());
}

void SourceIndex::Sort(Sources& of, int dimensions) {
  const auto begin = sources_.begin() + of.first, end = sources_.begin() + of.last;
  size_t most_cuts = 0;
  std::vector<int64_t> cuts;
  for (int d = 0; d < dimensions; ++d) {
    cuts.clear();
    for (auto s = begin; s != end; ++s) cuts.push_back(s->box.begin(d));
    std::sort(cuts.begin(), cuts.end());
    const auto count = static_cast<size_t>(std::unique(cuts.begin(), cuts.end()) - cuts.begin());
    if (count > most_cuts) {
      most_cuts = count;
      of.sort_dimension = d;
    }
  }
  if (dimensions == 0) return;
  const int d = of.sort_dimension;
  std::stable_sort(begin, end, [d](const Source& a, const Source& b) {
    return a.box.begin(d) < b.box.begin(d);
  });
  for (auto s = begin; s != end; ++s) of.longest = std::max(of.longest, s->box.extent(d));
}

std::pair<uint32_t, uint32_t> SourceIndex::Candidates(const Sources& of, const Box& box) const {
  if (box.dimensions() == 0) return {of.first, of.last};
  const int d = of.sort_dimension;
  const auto begin = sources_.begin() + of.first, end = sources_.begin() + of.last;
  const auto starts_before = [d](const Source& s, int64_t at) { return s.box.begin(d) < at; };
  const auto first = std::lower_bound(begin, end, box.begin(d) - of.longest + 1, starts_before);
  const auto last = std::lower_bound(first, end, box.end(d), starts_before);
  return {static_cast<uint32_t>(first - sources_.begin()),
          static_cast<uint32_t>(last - sources_.begin())};
}

uint32_t SourceIndex::shard_index(const Source& source, const Holder& holder) const {
  return tensors_.held(tensors_.first(source.tensor_class))[holder.holding].shard;
}

ShardView SourceIndex::shard(const Source& source, const Holder& holder) const {
  return senders_.manifest(senders_.class_of(holder.sender)).shard(shard_index(source, holder));
}

std::string SourceIndex::DescribeHolders(uint32_t tensor_class) const {
  constexpr uint32_t kShown = 4;
  const Sources& of = by_class_[tensor_class];
  if (of.first == of.last) return "nothing of it";
  std::string text;
  for (uint32_t s = of.first; s < of.last && s < of.first + kShown; ++s) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "trainer ",
                    holders(sources_[s]).front().sender, " ", ToString(sources_[s].box));
  }
  if (of.last - of.first > kShown) {
    absl::StrAppend(&text, " and ", of.last - of.first - kShown, " more");
  }
  return text;
}

}  // namespace waybill
