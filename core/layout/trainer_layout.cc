#include "core/layout/trainer_layout.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/narrow.h"
#include "core/base/status.h"
#include "core/layout/parameters.h"

namespace waybill {
namespace {

constexpr uint64_t kAlignmentBytes = 64;

// The stage that has a parameter; layers are dealt in runs that differ by one layer at most.
uint32_t StageOf(const ModelParameter& parameter, int64_t layers, uint32_t pp) {
  if (parameter.where == Where::kBeforeLayers) return 0;
  if (parameter.where != Where::kLayer) return pp - 1;
  return static_cast<uint32_t>(((parameter.layer + 1) * pp - 1) / layers);
}

// A tensor's part after the cut by tp: boxes that are adjacent along the axis of the cut.
struct Local {
  std::vector<Box> boxes;
  int axis = 0;
  int64_t extent = 0;  // The sum over all boxes along the axis.
};

// [first, last) are the parts that one tensor consists of, in order.
absl::StatusOr<Local> CutByTp(const ParameterPart* first, const ParameterPart* last, uint32_t tp,
                              uint32_t tp_rank) {
  Local local;
  local.axis = first->cut_axis;
  for (const ParameterPart* part = first; part != last; ++part) {
    WAYBILL_ASSIGN_OR_RETURN(const CutRange range,
                             CutPart(*part, tp, tp_rank, VocabularyRows::kChunked));
    local.extent += range.extent();
    Box box = part->box;
    if (box.dimensions() > 0) {
      const int64_t origin = box.begin(local.axis);
      box.Set(local.axis, origin + range.begin, origin + range.end);
      if (!local.boxes.empty() && local.boxes.back().end(local.axis) == box.begin(local.axis)) {
        local.boxes.back().Set(local.axis, local.boxes.back().begin(local.axis),
                               box.end(local.axis));
        continue;
      }
    }
    local.boxes.push_back(box);
  }
  return local;
}

// A shard before the region's size is known.
struct Placed {
  const CheckpointTensor* tensor;
  Box box;
  uint64_t offset_bytes;
  std::vector<int64_t> strides;
};

// Collects a rank's shards, each tensor's densely behind the one before.
class Memory {
 public:
  // Adds part `fsdp_rank` of `fsdp` of the rows of what tp left. A number alone is one row.
  void Add(const CheckpointTensor& tensor, const Local& local, uint32_t fsdp, uint32_t fsdp_rank) {
    if (tensor.shape.empty()) {
      if (fsdp_rank != 0) return;
      placed_.push_back({&tensor, local.boxes[0], end_bytes_, {}});
      Take(SizeBytes(tensor.dtype));
      return;
    }
    const auto axis = static_cast<size_t>(local.axis);
    const CutRange rows = TorchChunk(axis == 0 ? local.extent : tensor.shape[0], fsdp, fsdp_rank);
    std::vector<int64_t> extents(tensor.shape);
    extents[axis] = local.extent;
    extents[0] = rows.extent();
    std::vector<int64_t> strides(extents.size());
    RowMajorStrides(extents, absl::MakeSpan(strides));

    int64_t along = 0;  // The extent of the boxes before, along the axis that tp cut.
    for (Box box : local.boxes) {
      const int64_t begin = along;
      along += box.extent(local.axis);
      int64_t origin = begin;
      if (axis == 0) {
        const int64_t from = std::max(begin, rows.begin);
        const int64_t to = std::max(from, std::min(along, rows.end));
        box.Set(0, box.begin(0) + from - begin, box.begin(0) + to - begin);
        origin = from - rows.begin;
      } else {
        box.Set(0, rows.begin, rows.end);
      }
      if (box.empty()) continue;
      const auto offset = static_cast<uint64_t>(origin * strides[axis]) * SizeBytes(tensor.dtype);
      placed_.push_back({&tensor, box, end_bytes_ + offset, strides});
    }
    Take(static_cast<uint64_t>(Box::Whole(extents).element_count()) * SizeBytes(tensor.dtype));
  }

  Manifest ToManifest(const ModelConfig& config) const {
    Manifest manifest;
    // Memory of no bytes cannot be registered; a rank may hold nothing.
    manifest.AddRegion("weights", std::max(end_bytes_, kAlignmentBytes));
    const CheckpointTensor* last = nullptr;
    uint32_t tensor_index = 0;
    for (const Placed& shard : placed_) {
      if (shard.tensor != last) {
        last = shard.tensor;
        tensor_index = manifest.AddTensor(last->name, last->shape, last->dtype);
        if (IsTiedEmbedding(last->name, config)) manifest.AddAlias(kHeadName, tensor_index);
      }
      manifest.AddShard(tensor_index, Format{shard.tensor->dtype}, shard.box,
                        {0, shard.offset_bytes, shard.strides});
    }
    return manifest;
  }

 private:
  static bool IsTiedEmbedding(absl::string_view name, const ModelConfig& config) {
    if (config.family == nullptr || !config.tied_head) return false;
    absl::ConsumePrefix(&name, config.family->prefix);
    return name == config.family->embedding;
  }

  void Take(uint64_t size_bytes) { end_bytes_ = RoundUp(end_bytes_ + size_bytes, kAlignmentBytes); }

  std::vector<Placed> placed_;
  uint64_t end_bytes_ = 0;
};

absl::Status CheckSharding(const ModelConfig& config, const TrainerSharding& sharding,
                           uint32_t rank) {
  if (rank >= sharding.world()) {
    return absl::InvalidArgumentError(absl::StrCat("trainer ", rank, ": ", ToString(sharding),
                                                   " has ", sharding.world(), " ranks"));
  }
  if (sharding.pp > 1 && config.family == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("pp=", sharding.pp,
                                                   ": a generic model has no layers to deal out (",
                                                   config.generic_reason, ")"));
  }
  if (sharding.pp > 1 && sharding.pp > config.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("pp=", sharding.pp, ": the model has ", config.layers, " layers"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Manifest> MakeTrainerManifest(absl::Span<const CheckpointTensor> tensors,
                                             const ModelConfig& config,
                                             const TrainerSharding& sharding, uint32_t rank) {
  WAYBILL_RETURN_IF_ERROR(CheckSharding(config, sharding, rank));
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<ModelParameter> parameters,
                           FindParameters(tensors, config));
  Memory memory;
  for (const ModelParameter& parameter : parameters) {
    if (StageOf(parameter, config.layers, sharding.pp) != sharding.pp_rank(rank)) continue;
    const ParameterPart* const end = parameter.parts.data() + parameter.parts.size();
    for (const ParameterPart* part = parameter.parts.data(); part != end;) {
      const ParameterPart* const next = std::find_if(
          part, end, [&](const ParameterPart& other) { return other.tensor != part->tensor; });
      WAYBILL_ASSIGN_OR_RETURN(const Local local,
                               CutByTp(part, next, sharding.tp, sharding.tp_rank(rank)));
      memory.Add(*part->tensor, local, sharding.fsdp, sharding.fsdp_rank(rank));
      part = next;
    }
  }
  return memory.ToManifest(config);
}

}  // namespace waybill
