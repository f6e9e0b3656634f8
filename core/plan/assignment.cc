// SPDX-License-Identifier: Apache-2.0

#include "core/plan/assignment.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace waybill {
namespace {

// Relays are used only if they reduce the busiest link's time to this fraction, because they cost
// receivers more copies and more lanes.
constexpr double kWorthRelaying = 0.9;
// The largest neighbourhood. Receivers relay within it, and each has lanes to all others.
constexpr size_t kMostNeighbours = 512;
// A relayed copy is cut into at most this many parts for each destination.
constexpr uint32_t kMostParts = 4;

// By set and holder: the bytes that the holder has to send for the set.
using Quotas = std::vector<std::vector<double>>;

// Distributes `bytes` over the senders of `set` so that their loads, in seconds, become as equal as
// possible.
void FillEvenly(double bytes, const std::vector<uint32_t>& set, absl::Span<const RankLink> links,
                const std::vector<double>& loads, std::vector<uint32_t>& order,
                std::vector<double>& quotas) {
  order.resize(set.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return loads[set[a]] < loads[set[b]]; });
  // `level` is the common load of the least loaded senders, to which the bytes raise them.
  double speed = 0, weighted = 0, level = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t sender = set[order[i]];
    if (i > 0 && level <= loads[sender]) break;
    speed += links[sender].bytes_per_second;
    weighted += links[sender].bytes_per_second * loads[sender];
    level = (bytes + weighted) / speed;
  }
  for (size_t i = 0; i < set.size(); ++i) {
    quotas[i] = std::max(0.0, level - loads[set[i]]) * links[set[i]].bytes_per_second;
  }
}

Quotas ShareBytes(const SourceIndex& sources, const std::vector<double>& set_bytes,
                  absl::Span<const RankLink> links) {
  constexpr int kRounds = 100;
  constexpr double kStill = 1e-6;  // Relative to a sender's mean load.
  const auto& sets = sources.holder_sets();
  Quotas quotas(sets.size());
  std::vector<double> loads(links.size(), 0);
  for (size_t s = 0; s < sets.size(); ++s) quotas[s].assign(sets[s].size(), 0);
  std::vector<uint32_t> order;
  std::vector<double> before;
  for (int round = 0; round < kRounds; ++round) {
    double moved = 0, total = 0;
    for (size_t s = 0; s < sets.size(); ++s) {
      before = quotas[s];
      for (size_t i = 0; i < sets[s].size(); ++i) {
        loads[sets[s][i]] -= before[i] / links[sets[s][i]].bytes_per_second;
      }
      FillEvenly(set_bytes[s], sets[s], links, loads, order, quotas[s]);
      for (size_t i = 0; i < sets[s].size(); ++i) {
        loads[sets[s][i]] += quotas[s][i] / links[sets[s][i]].bytes_per_second;
        moved += quotas[s][i] > before[i] ? quotas[s][i] - before[i] : before[i] - quotas[s][i];
        total += quotas[s][i];
      }
    }
    if (moved <= kStill * total / static_cast<double>(std::max<size_t>(links.size(), 1))) break;
  }
  return quotas;
}

// Returns a lower bound of the busiest sender's load: for every set of holders, the bytes that only
// this set can send, divided by its speed.
double SenderBound(const std::vector<std::vector<uint32_t>>& sets,
                   const std::vector<double>& set_bytes, absl::Span<const RankLink> links) {
  constexpr size_t kMostSets = 2048;  // With more sets, subsets are not considered.
  double total_bytes = 0, total_speed = 0, bound = 0;
  for (const RankLink& link : links) total_speed += link.bytes_per_second;
  for (const double bytes : set_bytes) total_bytes += bytes;
  bound = total_bytes / total_speed;
  for (size_t s = 0; s < sets.size(); ++s) {
    double bytes = 0, speed = 0;
    for (const uint32_t sender : sets[s]) speed += links[sender].bytes_per_second;
    for (size_t other = 0; other < sets.size(); ++other) {
      const bool within = other == s || (sets.size() <= kMostSets &&
                                         std::includes(sets[s].begin(), sets[s].end(),
                                                       sets[other].begin(), sets[other].end()));
      if (within) bytes += set_bytes[other];
    }
    bound = std::max(bound, bytes / speed);
  }
  return bound;
}

// Moves the first rows of `box`, about `bytes` of its `size_bytes`, to `head`, without cutting a
// block. Returns false if either part would be below `smallest`.
bool CutRows(double bytes, uint64_t size_bytes, uint64_t smallest, Extents2 block, Box& box,
             Box& head) {
  int d = 0;
  while (d < box.dimensions() && box.extent(d) == 1) ++d;
  if (d == box.dimensions()) return false;
  const double row_bytes = static_cast<double>(size_bytes) / static_cast<double>(box.extent(d));
  const int64_t unit = d == box.dimensions() - 1   ? block.columns
                       : d == box.dimensions() - 2 ? block.rows
                                                   : 1;
  const auto about = static_cast<int64_t>(std::lround(bytes / row_bytes));
  const int64_t rows = (box.begin(d) + about) / unit * unit - box.begin(d);
  const auto least = static_cast<double>(smallest);
  if (rows <= 0 || rows >= box.extent(d) || static_cast<double>(rows) * row_bytes < least ||
      static_cast<double>(box.extent(d) - rows) * row_bytes < least) {
    return false;
  }
  head = box;
  head.Set(d, box.begin(d), box.begin(d) + rows);
  box.Set(d, box.begin(d) + rows, box.end(d));
  return true;
}

// Returns the size of a neighbourhood of receivers with consecutive numbers, which often belong to
// one inference engine. Gives the fewest neighbourhoods, of about equal size.
uint32_t NeighbourhoodSize(size_t receivers) {
  const size_t count = (receivers + kMostNeighbours - 1) / kMostNeighbours;
  return count == 0 ? 1 : static_cast<uint32_t>((receivers + count - 1) / count);
}

// Calls use(begin, end) for the destinations of each neighbourhood that has any. The destinations
// must be sorted by receiver.
template <typename Use>
void ForEachNeighbourhood(absl::Span<const Recipient> destinations, uint32_t size, Use use) {
  for (uint32_t begin = 0; begin < destinations.size();) {
    const uint32_t neighbourhood = destinations[begin].receiver / size;
    uint32_t end = begin + 1;
    while (end < destinations.size() && destinations[end].receiver / size == neighbourhood) ++end;
    use(begin, end);
    begin = end;
  }
}

double ElementBytesOf(const Demand& demand) {
  return static_cast<double>(demand.size_bytes) / static_cast<double>(demand.box.element_count());
}

// Returns the rows of the demand whose blocks the source holds whole. Empty if these rows, or the
// rest, are too small to be pieces.
Box BetweenSeams(const SourceIndex& sources, const Demand& demand, uint64_t smallest) {
  const Source& source = sources.source(demand.source);
  Box between = demand.box;
  const int d = between.dimensions() - 2;
  between.Set(d, between.end(d), between.end(d));
  const bool scales = demand.block == Extents2{};
  if (scales) return between;
  const auto& tensors = sources.tensors();
  const auto shape = tensors.shape(tensors.first(source.tensor_class));
  const Box rows = ElementsOf(CellsWithin(source.box, demand.block, shape), demand.block, shape);
  const int columns = d + 1;
  for (int outer = 0; outer < d; ++outer) {
    if (demand.box.extent(outer) != 1) return between;
  }
  if (rows.begin(columns) > demand.box.begin(columns) ||
      rows.end(columns) < demand.box.end(columns)) {
    return between;
  }
  const double row_bytes = ElementBytesOf(demand) * static_cast<double>(demand.box.extent(columns));
  const int64_t unit = demand.block.rows;
  const int64_t least = static_cast<int64_t>(std::ceil(static_cast<double>(smallest) / row_bytes));
  int64_t begin = demand.box.begin(d), end = demand.box.end(d);
  if (rows.begin(d) > begin) {
    begin = (std::max(rows.begin(d), begin + least) + unit - 1) / unit * unit;
  }
  if (rows.end(d) < end) end = std::min(rows.end(d), end - least) / unit * unit;
  if (end - begin >= std::max<int64_t>(least, 1)) between.Set(d, begin, end);
  return between;
}

class Assigner {
 public:
  Assigner(const SourceIndex& sources, const Demands& demands, absl::Span<const RankLink> senders,
           absl::Span<const RankLink> receivers, Quotas quotas, uint64_t smallest,
           std::vector<Shipment>& out)
      : sources_(sources),
        demands_(demands),
        senders_(senders),
        receivers_(receivers),
        quotas_(std::move(quotas)),
        smallest_(smallest),
        out_(out),
        neighbourhood_size_(NeighbourhoodSize(receivers.size())),
        racks_count_(HaveRacksInCommon(senders, receivers)) {}

  // Assigns the parts of a demand at the seams of its source, which are all but `between`, to one
  // holder.
  void AssignSeams(uint32_t index, const Box& between, bool relayed) {
    const Demand& demand = demands_.demands[index];
    const Source& source = sources_.source(demand.source);
    const auto holders = sources_.holders(source);
    std::vector<double>& quotas = quotas_[source.holder_set];
    const auto most = std::max_element(quotas.begin(), quotas.end()) - quotas.begin();
    const auto chosen = replicas_.try_emplace(source.tensor_class, static_cast<size_t>(most)).first;
    const size_t replica = std::min(chosen->second, holders.size() - 1);
    std::vector<Box> seams;
    Subtract(demand.box, between, seams);
    for (const Box& box : seams) {
      if (relayed) {
        AssignToRelays(index, box, replica);
      } else {
        Ship(LotOf(index, box), replica, box, AllCopies(demand));
      }
    }
  }

  // Assigns `box`, the demand's box or the part between its seams, for every tensor and
  // destination.
  void AssignBox(uint32_t index, const Box& box) {
    const Copies all = AllCopies(demands_.demands[index]);
    AssignCopies(LotOf(index, box), all);
  }

  // Assigns the postponed copies: as many as possible to holders in the receivers' racks, then the
  // rest to all holders. Call it after all demands have been assigned. Returns false if nothing was
  // postponed.
  bool AssignDeferred() {
    if (deferred_.empty()) return false;
    for (const Deferred& part : std::exchange(deferred_, {})) AssignInRacks(part);
    for (const Deferred& part : deferred_) AssignEvenly(LotOf(part), part.copies);
    deferred_.clear();
    return true;
  }

  // Assigns one copy of the box for each tensor and neighbourhood, in parts. The destinations get
  // the parts in turn and relay them. If `holder` is given, it sends all parts.
  void AssignToRelays(uint32_t index, const Box& box, std::optional<size_t> holder = std::nullopt) {
    const Demand& demand = demands_.demands[index];
    ForEachNeighbourhood(demands_.DestinationsOf(demands_.WantOf(demand)), neighbourhood_size_,
                         [&](uint32_t begin, uint32_t end) {
                           Copies neighbours = AllCopies(demand);
                           neighbours.first_destination = begin;
                           neighbours.last_destination = end;
                           AssignToNeighbours(index, box, neighbours, holder);
                         });
  }

 private:
  void AssignToNeighbours(uint32_t index, const Box& box, const Copies& all,
                          std::optional<size_t> holder) {
    const Demand& demand = demands_.demands[index];
    const uint32_t destinations = all.last_destination - all.first_destination;
    const uint32_t members = all.last_member;
    const uint32_t parts = PartsOfCopy(members, destinations);
    Box rest = box;
    double rest_bytes = static_cast<double>(box.element_count()) * ElementBytesOf(demand);
    for (uint32_t left = parts; left > 0; --left) {
      Box part = rest;
      if (left > 1 && !CutRows(rest_bytes / left, static_cast<uint64_t>(rest_bytes), smallest_,
                               demand.block, rest, part)) {
        continue;  // Larger parts can be cut, perhaps.
      }
      Lot lot = LotOf(index, part);
      lot.holder = holder;
      lot.relayed = true;
      rest_bytes -= lot.bytes();
      // Adjacent parts go to one destination. If the parts do not divide evenly, the extra ones go
      // to the destinations in turn, continuing after the last one that got an extra part.
      const uint32_t more = members % destinations;
      for (uint32_t d = 0, first = 0; d < destinations && first < members; ++d) {
        const uint32_t last = first + members / destinations + (d < more ? 1 : 0);
        const uint32_t head = all.first_destination + (next_relay_ + d) % destinations;
        AssignCopies(lot, {first, last, head, head + 1});
        first = last;
      }
      next_relay_ += more;
    }
  }

  // Returns the number of parts into which each of `copies` is cut, so that all destinations get
  // about equally many. Returns the smallest such number.
  static uint32_t PartsOfCopy(uint32_t copies, uint32_t destinations) {
    const uint32_t least = (destinations + copies - 1) / copies;
    uint32_t best = least;
    double best_ratio = kMostParts;  // The largest number of parts of a destination over the mean.
    for (uint32_t parts = least; parts <= kMostParts * least; ++parts) {
      const uint64_t all = uint64_t{parts} * copies;
      const uint64_t most = (all + destinations - 1) / destinations;
      const double ratio = static_cast<double>(most * destinations) / static_cast<double>(all);
      if (ratio < best_ratio - 0.01) {
        best = parts;
        best_ratio = ratio;
      }
    }
    return best;
  }

  // The unit of assignment.
  struct Lot {
    uint32_t demand;
    absl::Span<const Holder> holders;
    std::vector<double>& quotas;
    Box box;
    double element_bytes;
    std::optional<size_t> holder = std::nullopt;  // The only one of the holders that may send it.
    bool relayed = false;                         // Its destination relays it to all others.

    double bytes() const { return static_cast<double>(box.element_count()) * element_bytes; }
  };

  Lot LotOf(uint32_t index, const Box& box) {
    const Demand& demand = demands_.demands[index];
    const Source& source = sources_.source(demand.source);
    return {.demand = index,
            .holders = sources_.holders(source),
            .quotas = quotas_[source.holder_set],
            .box = box,
            .element_bytes = ElementBytesOf(demand)};
  }

  // Postponed copies, which wait until copies of all demands have been assigned to nearer holders.
  struct Deferred {
    uint32_t demand;
    Box box;
    bool relayed;
    Copies copies;
  };

  Lot LotOf(const Deferred& part) {
    Lot lot = LotOf(part.demand, part.box);
    lot.relayed = part.relayed;
    return lot;
  }

  void AssignCopies(const Lot& lot, const Copies& all) {
    if (lot.holders.size() == 1) return Ship(lot, 0, lot.box, all);
    if (lot.holder) return Ship(lot, *lot.holder, lot.box, all);
    const auto destinations =
        demands_.DestinationsOf(demands_.WantOf(demands_.demands[lot.demand]));
    for (uint32_t begin = all.first_destination; begin < all.last_destination;) {
      Copies some = all;
      some.first_destination = begin;
      if (IsOnHostOfAny(lot, destinations[begin].receiver)) {
        some.last_destination = begin + 1;
        AssignOnHost(lot, some);
      } else {
        uint32_t end = begin + 1;
        while (end < all.last_destination && !IsOnHostOfAny(lot, destinations[end].receiver)) ++end;
        some.last_destination = end;
      }
      begin = some.last_destination;
      if (!racks_count_) {
        AssignEvenly(lot, some);
      } else if (some.count() > 0) {
        deferred_.push_back({lot.demand, lot.box, lot.relayed, some});
      }
    }
  }

  Copies AllCopies(const Demand& demand) const {
    const Want& want = demands_.WantOf(demand);
    return {
        .last_member = static_cast<uint32_t>(sources_.tensors().members(want.tensor_class).size()),
        .last_destination = want.last_destination - want.first_destination};
  }

  static bool HaveRacksInCommon(absl::Span<const RankLink> senders,
                                absl::Span<const RankLink> receivers) {
    absl::flat_hash_set<uint32_t> racks;
    for (const RankLink& sender : senders) racks.insert(sender.rack);
    return std::any_of(receivers.begin(), receivers.end(), [&](const RankLink& receiver) {
      return receiver.rack != 0 && racks.contains(receiver.rack);
    });
  }

  bool IsOnHost(const Holder& holder, const RankLink& receiver) const {
    return receiver.host != 0 && senders_[holder.sender].host == receiver.host;
  }

  bool IsInRack(const Holder& holder, uint32_t rack) const {
    return rack != 0 && senders_[holder.sender].rack == rack;
  }

  bool IsOnHostOfAny(const Lot& lot, uint32_t receiver) const {
    return std::any_of(lot.holders.begin(), lot.holders.end(), [&](const Holder& holder) {
      return IsOnHost(holder, receivers_[receiver]);
    });
  }

  void Ship(const Lot& lot, size_t holder, const Box& box, const Copies& copies) {
    lot.quotas[holder] -= static_cast<double>(box.element_count()) * lot.element_bytes *
                          static_cast<double>(copies.count());
    out_.push_back(
        {.demand = lot.demand, .holder = lot.holders[holder], .box = box, .copies = copies});
    if (lot.relayed) Relay(lot.demand, box, copies);
  }

  // Makes a receiver relay its part to all neighbours that want it.
  void Relay(uint32_t demand, const Box& box, const Copies& got) {
    const auto destinations = demands_.DestinationsOf(demands_.WantOf(demands_.demands[demand]));
    const Recipient& head = destinations[got.first_destination];
    const Holder holder = {static_cast<uint32_t>(senders_.size()) + head.receiver, head.holding};
    const uint32_t neighbourhood = head.receiver / neighbourhood_size_;
    const auto first_not_before = [&](uint32_t receiver) {
      return static_cast<uint32_t>(
          std::partition_point(destinations.begin(), destinations.end(),
                               [&](const Recipient& to) { return to.receiver < receiver; }) -
          destinations.begin());
    };
    Copies before = got, after = got;
    before.first_destination = first_not_before(neighbourhood * neighbourhood_size_);
    before.last_destination = got.first_destination;
    after.first_destination = got.last_destination;
    after.last_destination = first_not_before((neighbourhood + 1) * neighbourhood_size_);
    for (const Copies& copies : {before, after}) {
      if (copies.count() == 0) continue;
      out_.push_back({.demand = demand, .holder = holder, .box = box, .copies = copies});
    }
  }

  // Assigns whole copies for one destination to the holders on its host, as far as their quotas
  // allow.
  void AssignOnHost(const Lot& lot, Copies& left) {
    const RankLink& receiver = receivers_[ReceiverOf(lot, left.first_destination)];
    for (size_t i = 0; i < lot.holders.size(); ++i) {
      if (!IsOnHost(lot.holders[i], receiver)) continue;
      Copies some = left;
      some.last_member = left.first_member +
                         static_cast<uint32_t>(std::min(static_cast<double>(left.count()),
                                                        WholeCopies(lot.quotas[i], lot.bytes())));
      if (some.count() > 0) Ship(lot, i, lot.box, some);
      left.first_member = some.last_member;
    }
  }

  // Assigns whole copies to the holders in the receivers' racks, as far as their quotas allow, and
  // postpones the rest.
  void AssignInRacks(const Deferred& part) {
    const Lot lot = LotOf(part);
    const auto rack_of = [&](uint32_t destination) {
      return receivers_[ReceiverOf(lot, destination)].rack;
    };
    for (uint32_t begin = part.copies.first_destination; begin < part.copies.last_destination;) {
      uint32_t end = begin + 1;
      while (end < part.copies.last_destination && rack_of(end) == rack_of(begin)) ++end;
      Copies some = part.copies;
      some.first_destination = begin;
      some.last_destination = end;
      const uint64_t done = AssignInRack(lot, some, rack_of(begin));
      ForRectangles(some, done, some.count(), [&](const Copies& left) {
        deferred_.push_back({part.demand, part.box, part.relayed, left});
      });
      begin = end;
    }
  }

  // Assigns whole copies to the holders in a rack, as far as their quotas allow. Returns the number
  // of copies.
  uint64_t AssignInRack(const Lot& lot, const Copies& copies, uint32_t rack) {
    std::vector<size_t> holders;
    for (size_t i = 0; i < lot.holders.size(); ++i) {
      if (IsInRack(lot.holders[i], rack)) holders.push_back(i);
    }
    return AssignWhole(lot, holders, copies);
  }

  // Assigns whole copies to all holders, and cuts the few remaining copies where quotas end.
  void AssignEvenly(const Lot& lot, const Copies& copies) {
    std::vector<size_t> holders(lot.holders.size());
    std::iota(holders.begin(), holders.end(), 0);
    uint64_t done = copies.count() > 1 ? AssignWhole(lot, holders, copies) : 0;
    const uint32_t width = copies.last_destination - copies.first_destination;
    for (; done < copies.count(); ++done) {
      const auto member = copies.first_member + static_cast<uint32_t>(done / width);
      const auto destination = copies.first_destination + static_cast<uint32_t>(done % width);
      AssignOne(lot, {member, member + 1, destination, destination + 1});
    }
  }

  // Assigns whole copies to some holders in proportion to their quotas, then each of the few
  // remaining copies to the holder with the most quota left. Returns the number of assigned copies,
  // which is less than all if the quotas are used up.
  uint64_t AssignWhole(const Lot& lot, absl::Span<const size_t> holders, const Copies& copies) {
    double quota_bytes = 0;
    for (const size_t i : holders) quota_bytes += std::max(lot.quotas[i], 0.0);
    const auto count = static_cast<double>(copies.count());
    std::vector<uint64_t> shares;
    uint64_t done = 0;
    for (const size_t i : holders) {
      const double quota = std::max(lot.quotas[i], 0.0);
      const double share = quota_bytes > 0 ? std::floor(count * (quota / quota_bytes)) : 0.0;
      shares.push_back(static_cast<uint64_t>(std::min(share, WholeCopies(quota, lot.bytes()))));
      done += shares.back();
    }
    const auto left = [&](size_t h) {
      return lot.quotas[holders[h]] - static_cast<double>(shares[h]) * lot.bytes();
    };
    for (; done < copies.count() && !holders.empty(); ++done) {
      size_t most = 0;
      for (size_t h = 1; h < holders.size(); ++h) {
        if (left(h) > left(most)) most = h;
      }
      if (left(most) < lot.bytes()) break;
      ++shares[most];
    }
    uint64_t begin = 0;
    for (size_t h = 0; h < holders.size(); ++h) {
      ShipRange(lot, holders[h], copies, begin, begin + shares[h]);
      begin += shares[h];
    }
    return done;
  }

  static double WholeCopies(double quota, double copy_bytes) {
    return quota <= 0 ? 0.0 : std::floor(quota / copy_bytes);
  }

  // Ships copies [begin, end), in the numbering of ForRectangles().
  void ShipRange(const Lot& lot, size_t holder, const Copies& of, uint64_t begin, uint64_t end) {
    ForRectangles(of, begin, end,
                  [&](const Copies& copies) { Ship(lot, holder, lot.box, copies); });
  }

  // Calls `use` for copies [begin, end), numbered tensor by tensor, as at most three rectangles.
  template <typename Use>
  static void ForRectangles(const Copies& of, uint64_t begin, uint64_t end, Use use) {
    const uint64_t width = of.last_destination - of.first_destination;
    while (begin < end) {
      const uint64_t column = begin % width;
      const uint64_t rows = column == 0 ? (end - begin) / width : 0;
      const uint64_t columns = rows > 0 ? width : std::min(width - column, end - begin);
      const auto member = of.first_member + static_cast<uint32_t>(begin / width);
      const auto destination = of.first_destination + static_cast<uint32_t>(column);
      use(Copies{member, member + static_cast<uint32_t>(std::max<uint64_t>(rows, 1)), destination,
                 destination + static_cast<uint32_t>(columns)});
      begin += std::max<uint64_t>(rows, 1) * columns;
    }
  }

  // Assigns one copy, cut into pieces where quotas end.
  void AssignOne(const Lot& lot, const Copies& copy) {
    const Demand& demand = demands_.demands[lot.demand];
    const RankLink& receiver = receivers_[ReceiverOf(lot, copy.first_destination)];
    Box rest = lot.box;
    while (true) {
      const size_t best = Best(lot, receiver);
      const auto rest_bytes =
          static_cast<uint64_t>(static_cast<double>(rest.element_count()) * lot.element_bytes);
      Box head;
      if (lot.quotas[best] < static_cast<double>(rest_bytes) &&
          CutRows(lot.quotas[best], rest_bytes, smallest_, demand.block, rest, head)) {
        Ship(lot, best, head, copy);
        continue;
      }
      Ship(lot, best, rest, copy);
      return;
    }
  }

  uint32_t ReceiverOf(const Lot& lot, uint32_t destination) const {
    const Want& want = demands_.WantOf(demands_.demands[lot.demand]);
    return demands_.DestinationsOf(want)[destination].receiver;
  }

  // Returns a holder with quota left: on the receiver's own host if possible, otherwise in its
  // rack, otherwise anywhere. Among several, returns the one with the most quota left.
  size_t Best(const Lot& lot, const RankLink& receiver) const {
    size_t best = 0;
    int best_nearness = 0;
    for (size_t i = 0; i < lot.holders.size(); ++i) {
      const bool has_some = lot.quotas[i] >= static_cast<double>(smallest_);
      const int nearness = !has_some                                 ? 0
                           : IsOnHost(lot.holders[i], receiver)      ? 2
                           : IsInRack(lot.holders[i], receiver.rack) ? 1
                                                                     : 0;
      if (i == 0 || nearness > best_nearness ||
          (nearness == best_nearness && lot.quotas[i] > lot.quotas[best])) {
        best = i;
        best_nearness = nearness;
      }
    }
    return best;
  }

  const SourceIndex& sources_;
  const Demands& demands_;
  absl::Span<const RankLink> senders_;
  absl::Span<const RankLink> receivers_;
  Quotas quotas_;
  uint64_t smallest_;
  std::vector<Shipment>& out_;
  const uint32_t neighbourhood_size_;
  // True if a sender and a receiver are in one rack. Copies of all demands are then assigned first
  // on the receivers' hosts, then in their racks, and only then to other holders. Otherwise a
  // distant receiver could use up the quota of a holder that is in the rack of a later demand's
  // receiver.
  const bool racks_count_;
  std::vector<Deferred> deferred_;
  absl::flat_hash_map<uint32_t, size_t> replicas_;  // The chosen holders of each class with seams.
  uint32_t next_relay_ = 0;
};

double Busiest(absl::Span<const double> loads) {
  double busiest = 0;
  for (const double load : loads) busiest = std::max(busiest, load);
  return busiest;
}

// Returns the loads of the links, and the lower bound of the busiest link's load.
Balance BalanceOf(const SourceIndex& sources, const Demands& demands,
                  const std::vector<Shipment>& shipments, const std::vector<double>& set_bytes,
                  absl::Span<const RankLink> senders, absl::Span<const RankLink> receivers,
                  absl::Span<const double> receiver_loads) {
  std::vector<double> loads(senders.size() + receivers.size(), 0);  // Of senders.
  for (const Shipment& shipment : shipments) {
    const Demand& demand = demands.demands[shipment.demand];
    const double share = static_cast<double>(shipment.box.element_count()) /
                         static_cast<double>(demand.box.element_count());
    const uint32_t sender = shipment.holder.sender;
    const RankLink& link =
        sender < senders.size() ? senders[sender] : receivers[sender - senders.size()];
    loads[sender] += share * static_cast<double>(demand.size_bytes * shipment.copies.count()) /
                     link.bytes_per_second;
  }
  Balance balance;
  for (size_t s = 0; s < loads.size(); ++s) {
    if (s >= senders.size()) {
      balance.busiest_receiver = std::max(balance.busiest_receiver, loads[s]);
      continue;
    }
    balance.busiest_sender = std::max(balance.busiest_sender, loads[s]);
    balance.mean_sender += loads[s] / static_cast<double>(senders.size());
  }
  balance.lower_bound =
      std::max(Busiest(receiver_loads), SenderBound(sources.holder_sets(), set_bytes, senders));
  balance.busiest_receiver = std::max(balance.busiest_receiver, Busiest(receiver_loads));
  return balance;
}

// Returns for each want whether it can be relayed: several receivers want it, each once. Scales are
// not relayed: they are small, and witnesses come with them.
std::vector<bool> FindRelayable(const Demands& demands) {
  std::vector<bool> relayable;
  std::vector<uint32_t> receivers;
  for (const Want& want : demands.wants) {
    receivers.clear();
    for (const Recipient& to : demands.DestinationsOf(want)) receivers.push_back(to.receiver);
    std::sort(receivers.begin(), receivers.end());
    const auto twice = std::adjacent_find(receivers.begin(), receivers.end());
    relayable.push_back(want.content != Content::kScales && receivers.size() > 1 &&
                        twice == receivers.end());
  }
  return relayable;
}

// Returns the part of each demand that remains after its seams are assigned. If a source has only
// one holder, its seams need not be assigned first.
std::vector<Box> FindRests(const SourceIndex& sources, const Demands& demands, uint64_t smallest) {
  std::vector<Box> rests;
  rests.reserve(demands.demands.size());
  for (const Demand& demand : demands.demands) {
    const bool apart = demand.at_seam && sources.holders(sources.source(demand.source)).size() > 1;
    rests.push_back(apart ? BetweenSeams(sources, demand, smallest) : demand.box);
  }
  return rests;
}

// Returns the bytes demanded from each set of holders. `once`: the wants of which the senders send
// one copy to each neighbourhood.
std::vector<double> BytesOfSets(const SourceIndex& sources, const Demands& demands,
                                const std::vector<bool>& once, uint32_t neighbourhood_size) {
  std::vector<double> set_bytes(sources.holder_sets().size(), 0);
  for (const Demand& demand : demands.demands) {
    const Want& want = demands.WantOf(demand);
    size_t copies = demands.DestinationsOf(want).size();
    if (once[demand.want]) {
      copies = 0;
      ForEachNeighbourhood(demands.DestinationsOf(want), neighbourhood_size,
                           [&](uint32_t, uint32_t) { ++copies; });
    }
    const size_t members = sources.tensors().members(want.tensor_class).size();
    set_bytes[sources.source(demand.source).holder_set] +=
        static_cast<double>(demand.size_bytes) * static_cast<double>(members * copies);
  }
  return set_bytes;
}

// Data between ranks of one host does not use links.
bool OnSeveralHosts(absl::Span<const RankLink> senders, absl::Span<const RankLink> receivers) {
  const auto elsewhere = [&](const RankLink& link) { return link.host != receivers[0].host; };
  return std::any_of(senders.begin(), senders.end(), elsewhere) ||
         std::any_of(receivers.begin(), receivers.end(), elsewhere);
}

}  // namespace

Assignment AssignDemands(const SourceIndex& sources, const Demands& demands,
                         absl::Span<const RankLink> senders, absl::Span<const RankLink> receivers,
                         uint64_t smallest_piece_bytes, Relays relays) {
  std::vector<double> receiver_loads(receivers.size(), 0);
  for (const Demand& demand : demands.demands) {
    const Want& want = demands.WantOf(demand);
    const double bytes = static_cast<double>(demand.size_bytes) *
                         static_cast<double>(sources.tensors().members(want.tensor_class).size());
    for (const Recipient& d : demands.DestinationsOf(want)) {
      receiver_loads[d.receiver] += bytes / receivers[d.receiver].bytes_per_second;
    }
  }
  std::vector<bool> relayed(demands.wants.size(), false);
  const uint32_t neighbours = NeighbourhoodSize(receivers.size());
  std::vector<double> set_bytes = BytesOfSets(sources, demands, relayed, neighbours);
  Assignment assignment;
  if (relays != Relays::kNever) {
    std::vector<bool> relayable = FindRelayable(demands);
    std::vector<double> once = BytesOfSets(sources, demands, relayable, neighbours);
    const auto busiest = [&](const std::vector<double>& bytes) {
      return std::max(Busiest(receiver_loads), SenderBound(sources.holder_sets(), bytes, senders));
    };
    assignment.relays =
        once != set_bytes &&
        (relays == Relays::kAlways || (OnSeveralHosts(senders, receivers) &&
                                       busiest(once) < kWorthRelaying * busiest(set_bytes)));
    if (assignment.relays) {
      set_bytes = std::move(once);
      relayed = std::move(relayable);
    }
  }
  std::vector<Shipment>& shipments = assignment.shipments;
  shipments.reserve(demands.demands.size());
  Assigner assigner(sources, demands, senders, receivers, ShareBytes(sources, set_bytes, senders),
                    smallest_piece_bytes, shipments);
  // Assign demands with only one holder first; the others balance them.
  const std::vector<Box> rests = FindRests(sources, demands, smallest_piece_bytes);
  for (uint32_t i = 0; i < demands.demands.size(); ++i) {
    const Demand& demand = demands.demands[i];
    if (rests[i] != demand.box) assigner.AssignSeams(i, rests[i], relayed[demand.want]);
  }
  bool in_order = shipments.empty();
  for (uint32_t i = 0; i < demands.demands.size(); ++i) {
    if (rests[i].empty()) continue;
    if (relayed[demands.demands[i].want]) {
      assigner.AssignToRelays(i, rests[i]);
    } else {
      assigner.AssignBox(i, rests[i]);
    }
  }
  if (assigner.AssignDeferred()) in_order = false;
  if (!in_order) {
    std::stable_sort(shipments.begin(), shipments.end(),
                     [](const Shipment& a, const Shipment& b) { return a.demand < b.demand; });
  }
  assignment.balance =
      BalanceOf(sources, demands, shipments, set_bytes, senders, receivers, receiver_loads);
  return assignment;
}

}  // namespace waybill
