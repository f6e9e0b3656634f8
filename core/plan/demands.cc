// SPDX-License-Identifier: Apache-2.0

#include "core/plan/demands.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/format.h"

namespace waybill {
namespace {

class DemandFinder {
 public:
  DemandFinder(const SourceIndex& sources, const RankClasses& receivers)
      : sources_(sources), tensors_(sources.tensors()), receivers_(receivers) {}

  absl::StatusOr<Demands> Run() && {
    for (uint32_t c = 0; c < tensors_.size(); ++c) AddWants(c);
    for (uint32_t w = 0; w < found_.wants.size(); ++w) WAYBILL_RETURN_IF_ERROR(CutWant(w));
    return std::move(found_);
  }

 private:
  // Where a want's sources are to be looked for, and what of one is there.
  struct Wanted {
    bool scales = false;
    Extents2 block;
    Extents2 cell;
    Box elements;
    absl::Span<const int64_t> shape;
  };

  const Manifest& ManifestOf(uint32_t receiver) const {
    return receivers_.manifest(receivers_.class_of(receiver));
  }

  // Gathers the shards of a class's first tensor that are alike but for their ranks.
  void AddWants(uint32_t tensor_class) {
    struct Alike {
      ShardView shard;
      std::vector<Recipient> destinations;
    };
    const auto wanted = tensors_.wanted(tensors_.first(tensor_class));
    std::vector<Alike> found;
    absl::flat_hash_map<size_t, std::vector<size_t>> by_box;
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      const ShardView shard = receivers_.manifest(wanted[i].rank_class).shard(wanted[i].shard);
      std::vector<size_t>& same_box = by_box[absl::HashOf(shard.box.begins(), shard.box.ends())];
      auto at = std::find_if(same_box.begin(), same_box.end(),
                             [&](size_t k) { return AreAlike(found[k].shard, shard); });
      if (at == same_box.end()) {
        at = same_box.insert(at, found.size());
        found.push_back({shard, {}});
      }
      for (const uint32_t receiver : receivers_.ranks(wanted[i].rank_class)) {
        found[*at].destinations.push_back({receiver, i});
      }
    }
    for (Alike& alike : found) {
      std::sort(alike.destinations.begin(), alike.destinations.end(),
                [](const Recipient& a, const Recipient& b) {
                  return std::pair(a.receiver, a.holding) < std::pair(b.receiver, b.holding);
                });
      const auto begin = static_cast<uint32_t>(found_.destinations.size());
      found_.destinations.insert(found_.destinations.end(), alike.destinations.begin(),
                                 alike.destinations.end());
      found_.wants.push_back(
          {.tensor_class = tensor_class,
           .content = alike.shard.format.content,
           .shard = wanted[alike.destinations.front().holding].shard,
           .first_destination = begin,
           .last_destination = static_cast<uint32_t>(found_.destinations.size())});
    }
  }

  static bool AreAlike(const ShardView& a, const ShardView& b) {
    return a.box == b.box && a.format == b.format && a.place.strides == b.place.strides;
  }

  absl::Status CutWant(uint32_t index) {
    const Want& want = found_.wants[index];
    const Recipient& first = found_.destinations[want.first_destination];
    const ShardView shard = ManifestOf(first.receiver).shard(want.shard);
    const auto shape = tensors_.shape(tensors_.first(want.tensor_class));
    const auto named = [&](const auto&... rest) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", ManifestOf(first.receiver).tensor_name(shard.tensor_index),
                       "\": worker ", first.receiver, rest...));
    };
    if (want.content == Content::kQuantised) {
      WAYBILL_RETURN_IF_ERROR(CheckHoldScales(want, shard));
    }
    const Wanted wanted = WantedOf(shard, shape);
    left_.assign(1, shard.box);
    absl::Status status;
    sources_.ForEachMeeting(want.tensor_class, wanted.elements, [&](uint32_t source) {
      if (!status.ok() || left_.empty()) return;
      status = CheckFormats(source, shard);
      if (status.ok()) TakeFrom(source, index, shard, wanted);
    });
    if (!status.ok()) return named(": ", status.message());
    if (!left_.empty()) {
      return named(" wants ", shard.format.content == Content::kScales ? "scales " : "",
                   ToString(shard.box), ", of which the trainers do not hold ",
                   ToString(left_.front()), "; they hold ",
                   sources_.DescribeHolders(want.tensor_class));
    }
    return absl::OkStatus();
  }

  static Wanted WantedOf(const ShardView& shard, absl::Span<const int64_t> shape) {
    Wanted wanted{.elements = shard.box, .shape = shape};
    if (shard.format.content == Content::kPlain) return wanted;
    wanted.scales = shard.format.content == Content::kScales;
    wanted.block = BlockExtents(shard.format.quantisation, shape);
    wanted.cell = ScaleExtents(shard.format.quantisation, shape);
    if (wanted.scales) {
      wanted.elements =
          ElementsOf(BlocksOfCells(shard.box, wanted.block, wanted.cell), wanted.block, shape);
    }
    return wanted;
  }

  static Box AvailableIn(const Box& source, const Wanted& wanted) {
    if (!wanted.scales) return source;
    return CellsOfBlocks(CellsBeginningIn(source, wanted.block), wanted.block, wanted.cell,
                         wanted.shape);
  }

  // Elements that are quantised on the way are useful only with their scales.
  absl::Status CheckHoldScales(const Want& want, const ShardView& shard) const {
    absl::flat_hash_set<uint32_t> checked;
    for (const Recipient& destination : found_.DestinationsOf(want)) {
      const uint32_t rank_class = receivers_.class_of(destination.receiver);
      if (!checked.insert(rank_class).second) continue;
      if (const absl::Status status = CheckHoldsScales(want, rank_class, shard); !status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor \"", tensors_.name(tensors_.first(want.tensor_class)),
                         "\": worker ", destination.receiver, " ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckHoldsScales(const Want& want, uint32_t rank_class,
                                const ShardView& shard) const {
    const uint32_t tensor = tensors_.first(want.tensor_class);
    const Extents2 cell = ScaleExtents(shard.format.quantisation, tensors_.shape(tensor));
    std::vector<Box> missing = {CellsMeeting(shard.box, cell)}, next;
    for (const Holding& h : tensors_.wanted(tensor)) {
      if (missing.empty()) break;
      if (h.rank_class != rank_class) continue;
      const ShardView other = receivers_.manifest(rank_class).shard(h.shard);
      if (other.format != Format::Scales(shard.format.quantisation)) continue;
      next.clear();
      for (const Box& box : missing) Subtract(box, other.box, next);
      std::swap(missing, next);
    }
    if (missing.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("holds ", ToString(shard.box), " as ", ToString(shard.format),
                     ", but not its scales ", ToString(missing.front()), " of the grid ",
                     ShapeToString(GridShape(tensors_.shape(tensor), cell)),
                     ": a part that ends within a block needs that block's scale too"));
  }

  absl::Status CheckFormats(uint32_t source, const ShardView& shard) const {
    const Source& of = sources_.source(source);
    for (const Holder& holder : sources_.holders(of)) {
      const Format held = sources_.shard(of, holder).format;
      if (held == shard.format) continue;
      WAYBILL_RETURN_IF_ERROR(
          While(absl::StrCat("trainer ", holder.sender, " holds ", ToString(held), ", wanted is ",
                             ToString(shard.format)),
                CheckConversion(held, shard.format)));
    }
    return absl::OkStatus();
  }

  void TakeFrom(uint32_t source, uint32_t want, const ShardView& shard, const Wanted& of) {
    const Box& held = sources_.source(source).box;
    const Box available = AvailableIn(held, of);
    const bool plain = shard.format.content == Content::kPlain;
    const Box whole = plain ? Box() : CellsWithin(held, of.block, of.shape);
    next_left_.clear();
    for (const Box& wanted : left_) {
      const Box box = Intersect(wanted, available);
      if (box.empty()) {
        next_left_.push_back(wanted);
        continue;
      }
      const Box blocks = plain       ? Box()
                         : of.scales ? BlocksOfCells(box, of.block, of.cell)
                                     : CellsMeeting(box, of.block);
      found_.demands.push_back(
          {.want = want,
           .source = source,
           .size_bytes = static_cast<uint64_t>(box.element_count()) * ElementBytes(shard.format),
           .box = box,
           .block = of.scales ? Extents2{} : of.block,
           .at_seam = !plain && !whole.Contains(blocks)});
      Subtract(wanted, box, next_left_);
    }
    std::swap(left_, next_left_);
  }

  const SourceIndex& sources_;
  const TensorClasses& tensors_;
  const RankClasses& receivers_;
  Demands found_;
  std::vector<Box> left_;  // The boxes of the current want that no source has filled yet.
  std::vector<Box> next_left_;
};

}  // namespace

absl::StatusOr<Demands> FindDemands(const SourceIndex& sources, const RankClasses& receivers) {
  return DemandFinder(sources, receivers).Run();
}

}  // namespace waybill
