#include "core/plan/demands.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// `box` without `hole`, which meets it, as disjoint boxes.
void Subtract(Box box, const Box& hole, std::vector<Box>& rest) {
  for (int d = 0; d < box.dimensions(); ++d) {
    if (hole.begin(d) > box.begin(d)) {
      Box before = box;
      before.Set(d, box.begin(d), hole.begin(d));
      rest.push_back(before);
    }
    if (hole.end(d) < box.end(d)) {
      Box after = box;
      after.Set(d, hole.end(d), box.end(d));
      rest.push_back(after);
    }
    box.Set(d, std::max(box.begin(d), hole.begin(d)), std::min(box.end(d), hole.end(d)));
  }
}

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
    left_.assign(1, shard.box);
    absl::Status status;
    sources_.ForEachMeeting(*tensor, shard.box, [&](uint32_t source) {
      if (!status.ok() || left_.empty()) return;
      status = CheckFormats(source, shard);
      if (status.ok()) TakeFrom(source, worker, shard_index, shard);
    });
    if (!status.ok()) return named(": ", status.message());
    if (!left_.empty()) {
      return named(" wants ", ToString(shard.box), ", of which the trainers do not hold ",
                   ToString(left_.front()), "; they hold ", sources_.DescribeHolders(*tensor));
    }
    return absl::OkStatus();
  }

 private:
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

  void TakeFrom(uint32_t source, uint32_t worker, uint32_t shard_index, const ShardView& shard) {
    const Box& available = sources_.source(source).box;
    next_left_.clear();
    for (const Box& wanted : left_) {
      const Box box = Intersect(wanted, available);
      if (box.empty()) {
        next_left_.push_back(wanted);
        continue;
      }
      demands_.push_back(
          {.worker = worker,
           .destination_shard = shard_index,
           .source = source,
           .size_bytes = static_cast<uint64_t>(box.element_count()) * ElementBytes(shard.format),
           .box = box});
      Subtract(wanted, box, next_left_);
    }
    std::swap(left_, next_left_);
  }

  const SourceIndex& sources_;
  absl::Span<const Manifest* const> trainers_;
  std::vector<Demand>& demands_;
  std::vector<Box> left_;  // Of the shard at hand, what no source has filled yet.
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
