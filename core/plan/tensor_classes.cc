// SPDX-License-Identifier: Apache-2.0

#include "core/plan/tensor_classes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/format.h"

namespace waybill {
namespace {

constexpr uint32_t kUnknown = ~uint32_t{0};

bool IsEmpty(const Manifest& manifest, uint32_t shard) { return manifest.shard_bytes(shard) == 0; }

// Returns the number of senders that hold the box that the most senders hold.
size_t MostHolders(absl::Span<const Holding> held, const RankClasses& senders) {
  using Bounds = std::pair<absl::Span<const int64_t>, absl::Span<const int64_t>>;
  std::vector<Box> boxes;
  boxes.reserve(held.size());
  std::map<Bounds, size_t> holders;
  size_t most = 1;
  for (const Holding& h : held) {
    const Box& box = boxes.emplace_back(senders.manifest(h.rank_class).shard(h.shard).box);
    size_t& count = holders[{box.begins(), box.ends()}];
    count += senders.ranks(h.rank_class).size();
    most = std::max(most, count);
  }
  return most;
}

}  // namespace

absl::StatusOr<TensorClasses> TensorClasses::Build(const RankClasses& senders,
                                                   const RankClasses& receivers) {
  TensorClasses classes;
  std::vector<Numbers> held, wanted;
  WAYBILL_RETURN_IF_ERROR(classes.NameTensors(senders, held));
  WAYBILL_RETURN_IF_ERROR(classes.FindWanted(receivers, wanted));
  const auto count = static_cast<uint32_t>(classes.tensors_.size());
  classes.wanted_ = MakeLists(receivers, wanted, count, nullptr);
  classes.held_ = MakeLists(senders, held, count, &classes.wanted_);
  classes.Classify(senders, receivers);
  return classes;
}

absl::Status TensorClasses::NameTensors(const RankClasses& senders, std::vector<Numbers>& numbers) {
  for (uint32_t c = 0; c < senders.size(); ++c) {
    const Manifest& manifest = senders.manifest(c);
    if (c > 0 && manifest.ListsTheSameTensors(senders.manifest(c - 1))) {
      numbers.push_back(numbers.back());
      continue;
    }
    const uint32_t rank = senders.ranks(c).front();
    Numbers& own = numbers.emplace_back();
    own.reserve(manifest.tensor_count());
    for (uint32_t i = 0; i < manifest.tensor_count(); ++i) {
      const auto [known, is_new] =
          names_.try_emplace(manifest.tensor_name(i), static_cast<uint32_t>(tensors_.size()));
      own.push_back(known->second);
      if (is_new) {
        tensors_.push_back({manifest.tensor_name(i), manifest.tensor_shape(i), rank});
        continue;
      }
      const Tensor& tensor = tensors_[known->second];
      if (tensor.shape != manifest.tensor_shape(i)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor \"", tensor.name, "\": trainer ", rank, " has shape ",
                         ShapeToString(manifest.tensor_shape(i)), ", trainer ", tensor.declared_by,
                         " has ", ShapeToString(tensor.shape)));
      }
    }
  }
  for (uint32_t c = 0; c < senders.size(); ++c) {
    const Manifest& manifest = senders.manifest(c);
    for (uint32_t i = 0; i < manifest.alias_count(); ++i) {
      names_.try_emplace(manifest.alias_name(i), numbers[c][manifest.alias_tensor(i)]);
    }
  }
  return absl::OkStatus();
}

// Wrappers of modules change how names begin, and hardly ever how they end.
absl::string_view TensorClasses::Nearest(absl::string_view name) const {
  absl::string_view nearest;
  ptrdiff_t most = -1;
  for (const Tensor& tensor : tensors_) {
    const absl::string_view other = tensor.name;
    const ptrdiff_t same =
        std::mismatch(name.rbegin(), name.rend(), other.rbegin(), other.rend()).first -
        name.rbegin();
    if (same > most) most = same, nearest = other;
  }
  return nearest;
}

absl::Status TensorClasses::FindWanted(const RankClasses& receivers,
                                       std::vector<Numbers>& numbers) const {
  for (uint32_t c = 0; c < receivers.size(); ++c) {
    const Manifest& manifest = receivers.manifest(c);
    Numbers& own = numbers.emplace_back();
    if (c > 0 && manifest.ListsTheSameTensors(receivers.manifest(c - 1))) {
      own = numbers[c - 1];
    } else {
      own.reserve(manifest.tensor_count());
      for (uint32_t i = 0; i < manifest.tensor_count(); ++i) {
        const auto found = names_.find(manifest.tensor_name(i));
        own.push_back(found == names_.end() ? kUnknown : found->second);
      }
      WAYBILL_RETURN_IF_ERROR(FindByAliases(manifest, receivers.ranks(c).front(), own));
    }
    for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
      const uint32_t tensor = own[manifest.shard_tensor(i)];
      const auto shape = manifest.tensor_shape(manifest.shard_tensor(i));
      if (tensor != kUnknown && tensors_[tensor].shape == shape) continue;
      if (IsEmpty(manifest, i)) continue;
      const std::string named =
          absl::StrCat("tensor \"", manifest.tensor_name(manifest.shard_tensor(i)), "\": worker ",
                       receivers.ranks(c).front());
      if (tensor == kUnknown) {
        std::string text = absl::StrCat(named, " wants ", ToString(manifest.shard(i).box),
                                        ", no trainer holds a tensor of that name");
        if (!tensors_.empty()) {
          absl::StrAppend(&text, "; of ", own.size(), " names of the worker ",
                          std::count(own.begin(), own.end(), kUnknown),
                          " are unknown, and the nearest is \"",
                          Nearest(manifest.tensor_name(manifest.shard_tensor(i))), "\"");
        }
        return absl::InvalidArgumentError(text);
      }
      return absl::InvalidArgumentError(absl::StrCat(named, " has shape ", ShapeToString(shape),
                                                     ", the trainers have ",
                                                     ShapeToString(tensors_[tensor].shape)));
    }
  }
  return absl::OkStatus();
}

// Refuses a receiver's tensor of several names by which the senders mean several tensors: it is
// received once.
absl::Status TensorClasses::FindByAliases(const Manifest& manifest, uint32_t receiver,
                                          Numbers& numbers) const {
  for (uint32_t i = 0; i < manifest.alias_count(); ++i) {
    const auto found = names_.find(manifest.alias_name(i));
    if (found == names_.end()) continue;
    uint32_t& number = numbers[manifest.alias_tensor(i)];
    if (number == kUnknown) number = found->second;
    if (number == found->second) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", manifest.tensor_name(manifest.alias_tensor(i)), "\": worker ", receiver,
        " holds it and \"", manifest.alias_name(i),
        "\" in the same memory, the trainers hold two tensors of these names: leave one of them "
        "out, or tie them in the trainers"));
  }
  return absl::OkStatus();
}

// Sorts the shards by tensor. With `wanted`, only those of tensors that are in its lists.
TensorClasses::Lists TensorClasses::MakeLists(const RankClasses& ranks,
                                              const std::vector<Numbers>& numbers,
                                              uint32_t tensor_count, const Lists* wanted) {
  std::vector<bool> left_out(tensor_count, false);
  for (uint32_t t = 0; wanted != nullptr && t < tensor_count; ++t) {
    left_out[t] = wanted->Of(t).empty();
  }
  const auto for_each = [&](auto visit) {
    for (uint32_t c = 0; c < ranks.size(); ++c) {
      const Manifest& manifest = ranks.manifest(c);
      for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
        const uint32_t tensor = numbers[c][manifest.shard_tensor(i)];
        if (tensor == kUnknown || left_out[tensor] || IsEmpty(manifest, i)) continue;
        visit(tensor, Holding{c, i});
      }
    }
  };
  Lists lists;
  lists.ends.assign(tensor_count, 0);
  for_each([&](uint32_t tensor, Holding) { ++lists.ends[tensor]; });
  uint32_t begin = 0;
  for (uint32_t& end : lists.ends) begin += std::exchange(end, begin);
  lists.items.resize(begin);
  for_each([&](uint32_t tensor, Holding holding) { lists.items[lists.ends[tensor]++] = holding; });
  return lists;
}

size_t TensorClasses::HashOf(uint32_t tensor, const RankClasses& senders,
                             const RankClasses& receivers) const {
  size_t hash = absl::HashOf(shape(tensor));
  for (const Holding& h : held(tensor)) {
    hash = absl::HashOf(hash, h.rank_class, senders.manifest(h.rank_class).HashOfShard(h.shard));
  }
  for (const Holding& h : wanted(tensor)) {
    hash = absl::HashOf(hash, h.rank_class, receivers.manifest(h.rank_class).HashOfShard(h.shard));
  }
  return hash;
}

bool TensorClasses::AreAlike(uint32_t a, uint32_t b, const RankClasses& senders,
                             const RankClasses& receivers) const {
  const auto alike = [](absl::Span<const Holding> x, absl::Span<const Holding> y,
                        const RankClasses& ranks) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [&](const Holding& i, const Holding& j) {
                        return i.rank_class == j.rank_class &&
                               ranks.manifest(i.rank_class).AreAlike(i.shard, j.shard);
                      });
  };
  return shape(a) == shape(b) && alike(held(a), held(b), senders) &&
         alike(wanted(a), wanted(b), receivers);
}

void TensorClasses::Classify(const RankClasses& senders, const RankClasses& receivers) {
  absl::flat_hash_map<size_t, std::vector<uint32_t>> known;  // Classes, by their tensors' hash.
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (wanted(tensor).empty()) continue;
    std::vector<uint32_t>& classes = known[HashOf(tensor, senders, receivers)];
    const auto alike = std::find_if(classes.begin(), classes.end(), [&](uint32_t c) {
      return AreAlike(first(c), tensor, senders, receivers);
    });
    if (alike != classes.end()) {
      members_[*alike].push_back(tensor);
      continue;
    }
    classes.push_back(size());
    members_.push_back({tensor});
  }
  DivideAmongReplicas(senders, receivers);
}

void TensorClasses::DivideAmongReplicas(const RankClasses& senders, const RankClasses& receivers) {
  std::vector<std::vector<uint32_t>> divided;
  for (std::vector<uint32_t>& members : members_) {
    const auto wants = wanted(members.front());
    const bool plain = std::all_of(wants.begin(), wants.end(), [&](const Holding& h) {
      return receivers.manifest(h.rank_class).shard_format(h.shard).content == Content::kPlain;
    });
    const size_t parts =
        plain ? 1 : std::min(MostHolders(held(members.front()), senders), members.size());
    for (size_t p = 0; p < parts; ++p) {
      const auto at = [&](size_t part) {
        return members.begin() + static_cast<std::ptrdiff_t>(members.size() * part / parts);
      };
      divided.emplace_back(at(p), at(p + 1));
    }
  }
  members_ = std::move(divided);
}

}  // namespace waybill
