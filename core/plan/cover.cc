// SPDX-License-Identifier: Apache-2.0

#include "core/plan/cover.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// What one bundle brings to a want: a box, for a range of tensors and a range of destinations.
struct Brought {
  Box box;
  Copies copies;
};

bool Meet(const Brought& a, const Brought& b) {
  const Copies &x = a.copies, &y = b.copies;
  return x.first_member < y.last_member && y.first_member < x.last_member &&
         x.first_destination < y.last_destination && y.first_destination < x.last_destination &&
         !Intersect(a.box, b.box).empty();
}

// A dimension of what is brought: the tensors, the destinations, then those of the boxes.
constexpr int kMembers = -2;
constexpr int kDestinations = -1;

int64_t Begin(const Brought& brought, int d) {
  return d == kMembers        ? brought.copies.first_member
         : d == kDestinations ? brought.copies.first_destination
                              : brought.box.begin(d);
}
int64_t End(const Brought& brought, int d) {
  return d == kMembers        ? brought.copies.last_member
         : d == kDestinations ? brought.copies.last_destination
                              : brought.box.end(d);
}

// An item, with its range in one dimension.
struct Placed {
  int64_t begin;
  int64_t end;
  const Brought* brought;
};

// Sorts the items along the dimension in which they fall into the most parts that do not meet.
// Returns where each part ends: nothing if all of them meet in every dimension.
std::vector<size_t> SortIntoParts(absl::Span<const Brought*> all) {
  std::vector<Placed> placed, best;
  std::vector<size_t> ends, best_ends;
  for (int d = kMembers; d < all.front()->box.dimensions(); ++d) {
    placed.clear();
    int64_t last_begin = Begin(*all.front(), d), first_end = End(*all.front(), d);
    for (const Brought* brought : all) {
      placed.push_back({Begin(*brought, d), End(*brought, d), brought});
      last_begin = std::max(last_begin, placed.back().begin);
      first_end = std::min(first_end, placed.back().end);
    }
    if (last_begin < first_end) continue;
    std::sort(placed.begin(), placed.end(),
              [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
    ends.clear();
    int64_t end = placed.front().end;
    for (size_t i = 1; i < placed.size(); ++i) {
      if (placed[i].begin >= end) ends.push_back(i);
      end = std::max(end, placed[i].end);
    }
    ends.push_back(placed.size());
    if (ends.size() > std::max<size_t>(best_ends.size(), 1)) {
      best.swap(placed);
      best_ends.swap(ends);
    }
  }
  for (size_t i = 0; i < best.size(); ++i) all[i] = best[i].brought;
  return best_ends;
}

// The largest number of items for which comparing all pairs is faster than sorting.
constexpr size_t kFewItems = 8;

absl::Status CheckPairs(absl::Span<const Brought* const> all) {
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      if (Meet(*all[i], *all[j])) {
        return absl::InternalError(absl::StrCat(ToString(all[i]->box), " and ",
                                                ToString(all[j]->box), " are both written"));
      }
    }
  }
  return absl::OkStatus();
}

// Only items of one part can meet, so each part is checked along another dimension.
absl::Status CheckDisjoint(absl::Span<const Brought*> all) {
  if (all.size() <= kFewItems) return CheckPairs(all);
  const std::vector<size_t> ends = SortIntoParts(all);
  if (ends.empty()) return CheckPairs(all);
  size_t first = 0;
  for (const size_t end : ends) {
    WAYBILL_RETURN_IF_ERROR(CheckDisjoint(all.subspan(first, end - first)));
    first = end;
  }
  return absl::OkStatus();
}

// Lists the bundles that bring bytes to each want.
class BundlesByWant {
 public:
  explicit BundlesByWant(const Bundles& bundles)
      : begins_(bundles.ranks().wants.size() + 2), sorted_(bundles.size()) {
    const auto for_each = [&](const auto& function) {
      for (uint32_t i = 0; i < bundles.size(); ++i) {
        if (!bundles.first_routes().witness(i)) function(i, bundles.bundle(i).want);
      }
    };
    for_each([&](uint32_t, uint32_t want) { ++begins_[want + 2]; });
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    for_each([&](uint32_t i, uint32_t want) { sorted_[begins_[want + 1]++] = i; });
  }

  absl::Span<const uint32_t> Of(uint32_t want) const {
    return absl::MakeSpan(sorted_).subspan(begins_[want], begins_[want + 1] - begins_[want]);
  }

 private:
  std::vector<size_t> begins_;
  std::vector<uint32_t> sorted_;
};

absl::Status CheckWant(const Box& wanted, uint64_t members, uint64_t destinations,
                       absl::Span<const Brought> all) {
  uint64_t elements = 0;
  std::vector<const Brought*> places;
  places.reserve(all.size());
  for (const Brought& brought : all) {
    if (!wanted.Contains(brought.box)) {
      return absl::InternalError(absl::StrCat("a route brings ", ToString(brought.box)));
    }
    if (brought.copies.last_member > members || brought.copies.last_destination > destinations) {
      return absl::InternalError("a route goes to nobody");
    }
    places.push_back(&brought);
    elements += static_cast<uint64_t>(brought.box.element_count()) * brought.copies.count();
  }
  WAYBILL_RETURN_IF_ERROR(CheckDisjoint(absl::MakeSpan(places)));
  const uint64_t all_elements =
      static_cast<uint64_t>(wanted.element_count()) * members * destinations;
  if (elements != all_elements) {
    return absl::InternalError(
        absl::StrCat(elements, " of ", all_elements, " elements are written"));
  }
  return absl::OkStatus();
}

// The key by which CheckRelays() finds what a receiver gets: the receiver, its holding, the tensors
// and the box. The destinations do not count.
struct Had {
  uint32_t receiver;
  uint32_t holding;
  const Brought* brought;

  bool operator==(const Had& other) const {
    const Copies &x = brought->copies, &y = other.brought->copies;
    return receiver == other.receiver && holding == other.holding &&
           x.first_member == y.first_member && x.last_member == y.last_member &&
           brought->box == other.brought->box;
  }
  template <typename H>
  friend H AbslHashValue(H hash, const Had& had) {
    return H::combine(std::move(hash), had.receiver, had.holding, had.brought->copies.first_member,
                      had.brought->copies.last_member, had.brought->box);
  }
};

// Checks that a receiver relays only what a sender brings it: of the bundles of one want, each
// relayed one has the tensors and the box of one that a sender sends to this receiver. `brought` is
// what they bring, in their order.
absl::Status CheckRelays(const Bundles& bundles, const Want& want,
                         absl::Span<const uint32_t> of_want, absl::Span<const Brought> brought) {
  const PlannedRanks& ranks = bundles.ranks();
  absl::flat_hash_set<Had> had;
  had.reserve(of_want.size());
  for (size_t i = 0; i < of_want.size(); ++i) {
    const Copies& copies = brought[i].copies;
    if (bundles.bundle(of_want[i]).relayed ||
        copies.last_destination - copies.first_destination != 1) {
      continue;
    }
    const Recipient& to = ranks.destinations[want.first_destination + copies.first_destination];
    had.insert({to.receiver, to.holding, &brought[i]});
  }
  for (size_t i = 0; i < of_want.size(); ++i) {
    const Bundle& bundle = bundles.bundle(of_want[i]);
    if (!bundle.relayed) continue;
    const Copies& copies = brought[i].copies;
    const uint32_t receiver = bundles.first_routes().sender(of_want[i]) - bundles.holder_count();
    for (uint32_t d = copies.first_destination; d < copies.last_destination; ++d) {
      if (ranks.destinations[want.first_destination + d].receiver == receiver) {
        return absl::InternalError(absl::StrCat("worker ", receiver, " relays to itself"));
      }
    }
    if (!had.contains({receiver, bundle.holding, &brought[i]})) {
      return absl::InternalError(absl::StrCat("worker ", receiver, " relays ",
                                              ToString(brought[i].box),
                                              ", which no trainer brings it"));
    }
  }
  return absl::OkStatus();
}

// Checks that the receivers of a class want `places`, sorted, and that these name each shard that
// is not empty once. A place is a class of tensors and a place in the list of who wants each of
// them.
absl::Status CheckPlaces(const PlannedRanks& ranks, uint32_t rank_class,
                         absl::Span<const std::pair<uint32_t, uint32_t>> places) {
  const Manifest& manifest = ranks.receivers.manifest(rank_class);
  const auto error = [&](uint32_t shard, absl::string_view what) {
    return absl::InternalError(
        absl::StrCat("tensor \"", manifest.tensor_name(manifest.shard_tensor(shard)), "\": worker ",
                     ranks.receivers.ranks(rank_class).front(), " wants ",
                     ToString(manifest.shard(shard).box), what));
  };
  std::vector<uint8_t> named(manifest.shard_count(), 0);
  for (const auto& [tensor_class, holding] : places) {
    for (const uint32_t tensor : ranks.tensors.members(tensor_class)) {
      const uint32_t shard = ranks.tensors.wanted(tensor)[holding].shard;
      if (named[shard]++ != 0) return error(shard, " twice");
    }
  }
  for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
    if (named[i] != (manifest.shard_bytes(i) > 0)) return error(i, ", which is not planned");
  }
  return absl::OkStatus();
}

// Checks that every receiver's shard that is not empty is named once, by a destination of a want
// whose box it has, and that nothing else is named.
absl::Status CheckEveryShardIsWanted(const PlannedRanks& ranks) {
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> places(ranks.receivers.rank_count());
  for (const Want& want : ranks.wants) {
    const uint32_t first = ranks.destinations[want.first_destination].receiver;
    const Box box = ranks.receivers.manifest(ranks.receivers.class_of(first)).shard(want.shard).box;
    std::set<std::pair<uint32_t, uint32_t>> has_box;  // Classes of ranks and holdings.
    for (uint32_t d = want.first_destination; d < want.last_destination; ++d) {
      const auto [receiver, holding] = ranks.destinations[d];
      places[receiver].emplace_back(want.tensor_class, holding);
      const uint32_t rank_class = ranks.receivers.class_of(receiver);
      if (!has_box.insert({rank_class, holding}).second) continue;
      const Manifest& manifest = ranks.receivers.manifest(rank_class);
      const auto tensors = ranks.tensors.members(want.tensor_class);
      for (const uint32_t tensor : tensors) {
        const auto wanted = ranks.tensors.wanted(tensor);
        if (holding < wanted.size() && wanted[holding].rank_class == rank_class) {
          const uint32_t like = ranks.tensors.wanted(tensors.front())[holding].shard;
          const uint32_t shard = wanted[holding].shard;
          if (shard == like ? manifest.shard(shard).box == box : manifest.AreAlike(shard, like)) {
            continue;
          }
        }
        return absl::InternalError(absl::StrCat("tensor \"", ranks.tensors.name(tensor),
                                                "\": worker ", receiver, " does not want ",
                                                ToString(box)));
      }
    }
  }
  for (uint32_t c = 0; c < ranks.receivers.size(); ++c) {
    const uint32_t first = ranks.receivers.ranks(c).front();
    for (const uint32_t receiver : ranks.receivers.ranks(c)) {
      std::sort(places[receiver].begin(), places[receiver].end());
      if (places[receiver] == places[first]) continue;
      return absl::InternalError(absl::StrCat("workers ", first, " and ", receiver,
                                              " hold the same, but are planned differently"));
    }
    WAYBILL_RETURN_IF_ERROR(CheckPlaces(ranks, c, places[first]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCover(const Bundles& bundles) {
  const PlannedRanks& ranks = bundles.ranks();
  WAYBILL_RETURN_IF_ERROR(CheckEveryShardIsWanted(ranks));
  const BundlesByWant by_want(bundles);
  std::vector<Brought> brought;
  for (uint32_t w = 0; w < ranks.wants.size(); ++w) {
    const Want& want = ranks.wants[w];
    const absl::Span<const uint32_t> of_want = by_want.Of(w);
    brought.clear();
    for (const uint32_t i : of_want) {
      brought.push_back({bundles.first_routes().box(i), bundles.bundle(i).copies});
    }
    const uint32_t receiver = ranks.destinations[want.first_destination].receiver;
    const Manifest& manifest = ranks.receivers.manifest(ranks.receivers.class_of(receiver));
    const ShardView shard = manifest.shard(want.shard);
    absl::Status status = CheckWant(shard.box, ranks.tensors.members(want.tensor_class).size(),
                                    want.last_destination - want.first_destination, brought);
    if (status.ok() && ranks.relays) status = CheckRelays(bundles, want, of_want, brought);
    WAYBILL_RETURN_IF_ERROR(
        While(absl::StrCat("tensor \"", manifest.tensor_name(shard.tensor_index), "\": worker ",
                           receiver, " wants ", ToString(shard.box)),
              status));
  }
  return absl::OkStatus();
}

}  // namespace waybill
