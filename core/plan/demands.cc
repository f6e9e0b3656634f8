#include "core/plan/demands.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/format.h"

namespace waybill {
namespace {

class DemandFinder {
 public:
  DemandFinder(const SourceIndex& sources, absl::Span<const Manifest* const> trainers,
               std::vector<Demand>& demands)
      : sources_(sources), trainers_(trainers), demands_(demands) {}

  absl::Status AddShard(uint32_t worker, const Manifest& manifest, uint32_t shard_index) {
    const ShardView shard = manifest.shard(shard_index);
    if (shard.box.empty()) return absl::OkStatus();
    const auto named = [&](auto... rest) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", manifest.tensor_name(shard.tensor_index), "\": worker ", worker, rest...));
    };
    const uint32_t* tensor = sources_.FindTensor(manifest.tensor_name(shard.tensor_index));
    if (tensor == nullptr) {
      return named(" wants ", ToString(shard.box), ", no trainer holds a tensor of that name");
    }
    if (sources_.shape(*tensor) != manifest.tensor_shape(shard.tensor_index)) {
      return named(" has shape ", ShapeToString(manifest.tensor_shape(shard.tensor_index)),
                   ", the trainers have ", ShapeToString(sources_.shape(*tensor)));
    }
    if (shard.format.content == Content::kQuantised) {
      if (absl::Status status = CheckQuantisedShard(manifest, shard); !status.ok()) {
        return named(" ", status.message());
      }
    }
    const Wanted wanted = WantedOf(shard, sources_.shape(*tensor));
    left_.assign(1, shard.box);
    absl::Status status;
    sources_.ForEachMeeting(*tensor, wanted.elements, [&](uint32_t source) {
      if (!status.ok() || left_.empty()) return;
      status = CheckFormats(source, shard);
      if (status.ok()) TakeFrom(source, worker, shard_index, shard, wanted);
    });
    if (!status.ok()) return named(": ", status.message());
    if (!left_.empty()) {
      return named(" wants ", shard.format.content == Content::kScales ? "scales " : "",
                   ToString(shard.box), ", of which the trainers do not hold ",
                   ToString(left_.front()), "; they hold ", sources_.DescribeHolders(*tensor));
    }
    return absl::OkStatus();
  }

 private:
  // Where a shard's sources are to be looked for, and what of one is there.
  struct Wanted {
    bool scales = false;
    Extents2 block;
    Extents2 cell;
    Box elements;
    absl::Span<const int64_t> shape;
  };

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
  absl::Status CheckQuantisedShard(const Manifest& manifest, const ShardView& shard) const {
    const auto shape = manifest.tensor_shape(shard.tensor_index);
    const Extents2 cell = ScaleExtents(shard.format.quantisation, shape);
    std::vector<Box> missing = {CellsMeeting(shard.box, cell)}, next;
    for (uint32_t i = 0; i < manifest.shard_count() && !missing.empty(); ++i) {
      const ShardView other = manifest.shard(i);
      if (other.tensor_index != shard.tensor_index ||
          other.format != Format::Scales(shard.format.quantisation)) {
        continue;
      }
      next.clear();
      for (const Box& box : missing) Subtract(box, other.box, next);
      std::swap(missing, next);
    }
    if (missing.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "holds ", ToString(shard.box), " as ", ToString(shard.format), ", but not its scales ",
        ToString(missing.front()), " of the grid ", ShapeToString(GridShape(shape, cell)),
        ": a part that ends within a block needs that block's scale too"));
  }

  absl::Status CheckFormats(uint32_t source, const ShardView& shard) const {
    for (const Holder& holder : sources_.holders(sources_.source(source))) {
      const Format& held = trainers_[holder.trainer]->shard(holder.shard).format;
      if (held == shard.format) continue;
      WAYBILL_RETURN_IF_ERROR(
          While(absl::StrCat("trainer ", holder.trainer, " holds ", ToString(held), ", wanted is ",
                             ToString(shard.format)),
                CheckConversion(held, shard.format)));
    }
    return absl::OkStatus();
  }

  void TakeFrom(uint32_t source, uint32_t worker, uint32_t shard_index, const ShardView& shard,
                const Wanted& of) {
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
      demands_.push_back(
          {.worker = worker,
           .destination_shard = shard_index,
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
  absl::Span<const Manifest* const> trainers_;
  std::vector<Demand>& demands_;
  std::vector<Box> left_;  // The boxes of the current shard that no source has filled yet.
  std::vector<Box> next_left_;
};

}  // namespace

absl::StatusOr<std::vector<Demand>> FindDemands(const SourceIndex& sources,
                                                absl::Span<const Manifest* const> trainers,
                                                absl::Span<const Manifest* const> workers) {
  std::vector<Demand> demands;
  DemandFinder finder(sources, trainers, demands);
  for (uint32_t worker = 0; worker < workers.size(); ++worker) {
    for (uint32_t shard = 0; shard < workers[worker]->shard_count(); ++shard) {
      WAYBILL_RETURN_IF_ERROR(finder.AddShard(worker, *workers[worker], shard));
    }
  }
  return demands;
}

}  // namespace waybill
