// SPDX-License-Identifier: Apache-2.0

#include "core/layout/worker_layout.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/narrow.h"
#include "core/base/status.h"
#include "core/layout/parameters.h"

namespace waybill {
namespace {

constexpr uint64_t kAlignmentBytes = 256;

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16 ||
         dtype == Dtype::kF64;
}

constexpr int64_t kMxfp4Block = 32;

// The multiples to which vLLM rounds the sizes of experts in MXFP4, in elements.
struct Rounding {
  int64_t hidden;
  int64_t inner;  // What a rank has of an expert.

  // Returns the multiple of an axis, in the axis's own unit.
  int64_t MultipleOf(Extent extent) const {
    switch (extent) {
      case Extent::kHidden:
        return hidden;
      case Extent::kHiddenBlocks:
        return hidden / kMxfp4Block;
      case Extent::kTwiceExpertInner:
        return 2 * inner;
      case Extent::kInnerBlocks:
        return inner / kMxfp4Block;
      default:
        return 1;
    }
  }
};
constexpr Rounding kRoundings[] = {{32, 64}, {256, 128}, {128, 128}, {32, 32}};  // By Mxfp4Kernel.
constexpr Rounding kWholeBlocks = {kMxfp4Block, kMxfp4Block};

struct Piece {
  const CheckpointTensor* tensor;
  Box box;
  std::vector<int64_t> held;  // The extents in memory, padding included.
};

// A parameter with what it takes from its parts, one piece behind the other.
struct Cuts {
  Parameter parameter;
  const TensorRule* rule;
  std::vector<Piece> pieces;
};

uint64_t ElementCount(absl::Span<const int64_t> shape) {
  uint64_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<uint64_t>(extent);
  return count;
}

// Returns the extents of a piece in memory. The last two axes of a transposed tensor change places.
std::vector<int64_t> HeldExtents(const Box& box, const TensorRule& rule) {
  std::vector<int64_t> extents;
  extents.reserve(static_cast<size_t>(box.dimensions()));
  for (int d = 0; d < box.dimensions(); ++d) extents.push_back(box.extent(d));
  if (rule.Is(TensorRule::kTransposed)) std::iter_swap(extents.rbegin(), extents.rbegin() + 1);
  return extents;
}

class Cutter {
 public:
  Cutter(const ModelConfig& config, const WorkerSharding& sharding, uint32_t rank,
         const Serving& serving)
      : config_(config), sharding_(sharding), rank_(rank), serving_(serving) {}

  // Returns the range that tensor parallelism leaves the rank.
  absl::StatusOr<CutRange> RangeOf(const ModelTensor& tensor) const {
    const Share share = ShareOf(*tensor.rule);
    if (IsRounded(*tensor.rule) && tensor.rule->cut != Cut::kFirstRank) {
      return BlocksOf(tensor, share);
    }
    const char* word = share.count == sharding_.tp               ? "tp"
                       : share.count == sharding_.engine_ranks() ? "tp*dp"
                                                                 : "tp*dp/ep";
    return CutTensor(tensor, config_, share, VocabularyRows::kPadded, word);
  }

  absl::StatusOr<Cuts> Cut(const ModelParameter& parameter,
                           const std::optional<Quantisation>& quantisation) const {
    const TensorRule& rule = *parameter.rule;
    Cuts cuts{.parameter = {.name = parameter.name}, .rule = &rule};
    if (parameter.parts.empty()) {
      cuts.parameter.format.dtype = rule.Is(TensorRule::kVllmOnly) ? Dtype::kBf16 : Dtype::kF32;
      return cuts;
    }
    cuts.parameter.format = FormatOf(*parameter.parts[0], quantisation);
    ExpertRange experts;
    if (rule.where == Where::kExpert || rule.Is(TensorRule::kStacked)) {
      WAYBILL_ASSIGN_OR_RETURN(
          experts, CutExperts(config_, sharding_.ExpertShare(rank_), sharding_.uneven_experts));
    }
    for (const ModelTensor* part : parameter.parts) {
      if (part->expert >= 0 && (part->expert < experts.begin || part->expert >= experts.end)) {
        continue;
      }
      WAYBILL_ASSIGN_OR_RETURN(const CutRange range, RangeOf(*part));
      WAYBILL_RETURN_IF_ERROR(AddPieces(*part, range, experts, cuts));
    }
    if (rule.where == Where::kExpert) {
      const int64_t count = experts.end - experts.begin;
      std::vector<int64_t>& shape = cuts.parameter.shape;
      shape[0] /= count;
      shape.insert(shape.begin(), count);
    }
    return cuts;
  }

 private:
  bool IsRounded(const TensorRule& rule) const {
    return rule.block == Block::kPackedExperts && sharding_.engine == Engine::kVllm;
  }

  // vLLM deals blocks as torch.chunk does, so the last ranks may have fewer.
  static CutRange BlocksOf(const ModelTensor& tensor, Share share) {
    const auto axis = static_cast<size_t>(tensor.rule->cut_axis());
    const int64_t unit = kWholeBlocks.MultipleOf(tensor.rule->shape[axis]);
    const int64_t blocks = tensor.tensor->shape[axis] / unit;
    const CutRange range = TorchChunk(blocks, share);
    return {range.begin * unit, range.end * unit,
            (TorchChunk(blocks, {share.count, 0}).extent() - range.extent()) * unit};
  }

  Format FormatOf(const ModelTensor& part, const std::optional<Quantisation>& quantisation) const {
    if (quantisation) return Format::Quantised(*quantisation);
    const Dtype stored = part.tensor->dtype;
    if (!IsFloat(stored)) return Format{stored};
    if (part.rule->Is(TensorRule::kF32) || part.rule->Is(TensorRule::kHeldAsF32) ||
        (part.rule->Is(TensorRule::kSglangHoldsF32) && sharding_.engine == Engine::kSglang)) {
      return Format{Dtype::kF32};
    }
    return Format{serving_.dtype.value_or(stored)};
  }

  Share ShareOf(const TensorRule& rule) const {
    if (config_.family != nullptr) return sharding_.TensorShare(rule, *config_.family, rank_);
    return {sharding_.tp, sharding_.engine_rank(rank_) % sharding_.tp};
  }

  // Adds each section of the part, and its extent to the parameter's shape.
  absl::Status AddPieces(const ModelTensor& part, const CutRange& range, const ExpertRange& experts,
                         Cuts& cuts) const {
    const TensorRule& rule = *part.rule;
    const CheckpointTensor& tensor = *part.tensor;
    if (absl::Status s = CheckConversion(Format{tensor.dtype}, cuts.parameter.format); !s.ok()) {
      return While(
          absl::StrCat("tensor \"", tensor.name, "\" in parameter \"", cuts.parameter.name, "\""),
          std::move(s));
    }
    std::vector<int64_t>& shape = cuts.parameter.shape;
    for (int section = 0; section < rule.sections; ++section) {
      Box box = Box::Whole(tensor.shape);
      Box held = box;  // The box and its padding.
      if (rule.Is(TensorRule::kStacked)) {
        box.Set(0, experts.begin, experts.end);
        held = box;
      }
      if (box.dimensions() > 0) {
        const int axis = rule.cut_axis();
        const int64_t origin = tensor.shape[static_cast<size_t>(axis)] / rule.sections * section;
        box.Set(axis, origin + range.begin, origin + range.end);
        held.Set(axis, origin + range.begin, origin + range.end + range.padding);
      }
      for (int d = 0; IsRounded(rule) && d < held.dimensions(); ++d) {
        const int64_t multiple = kRoundings[static_cast<size_t>(sharding_.mxfp4)].MultipleOf(
            rule.shape[static_cast<size_t>(d)]);
        const auto rounded = static_cast<int64_t>(
            RoundUp(static_cast<uint64_t>(held.extent(d)), static_cast<uint64_t>(multiple)));
        held.Set(d, held.begin(d), held.begin(d) + rounded);
      }
      std::vector<int64_t> extents = HeldExtents(held, rule);
      cuts.pieces.push_back({&tensor, box, extents});
      if (rule.dimensions() == 4) {
        // A row's packed blocks are one axis in the engine.
        extents[2] *= extents[3];
        extents.pop_back();
      }
      if (shape.empty()) {
        shape = std::move(extents);
      } else {
        shape[0] += extents[0];
      }
    }
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  const WorkerSharding& sharding_;
  const uint32_t rank_;
  const Serving& serving_;
};

// Returns the scales of a quantised parameter.
Cuts ScalesOf(const Cuts& cuts) {
  const Quantisation& q = cuts.parameter.format.quantisation;
  Cuts scales{.rule = cuts.rule};
  scales.parameter.name = ScaleName(cuts.parameter.name, q);
  scales.parameter.format = Format::Scales(q);
  int64_t rows = 0, columns = 0;
  for (const Piece& piece : cuts.pieces) {
    const Box cells = CellsMeeting(piece.box, ScaleExtents(q, piece.tensor->shape));
    rows += cells.extent(0);
    columns = cells.extent(1);
    scales.pieces.push_back({piece.tensor, cells, HeldExtents(cells, *cuts.rule)});
  }
  scales.parameter.shape = {rows, columns};
  if (cuts.rule->where == Where::kExpert) {
    const int64_t experts = cuts.parameter.shape[0];
    scales.parameter.shape = {experts, rows / experts, columns};
  }
  return scales;
}

uint64_t SizeBytesOf(const Parameter& parameter) {
  return ElementCount(parameter.shape) * ElementBytes(parameter.format);
}

// Collects parameters, places each behind the one before, and describes all memory.
class Memory {
 public:
  void Add(Cuts cuts) {
    Parameter& parameter = cuts.parameter;
    parameter.offset_bytes = RoundUp(end_bytes_, kAlignmentBytes);
    PadTo(parameter.offset_bytes);
    const uint32_t element_bytes = ElementBytes(parameter.format);
    std::vector<int64_t> strides;
    for (const Piece& piece : cuts.pieces) {
      strides.resize(piece.held.size());
      RowMajorStrides(piece.held, absl::MakeSpan(strides));
      PadAround(HeldExtents(piece.box, *cuts.rule), piece.held, strides, element_bytes);
      if (!piece.box.empty()) {
        if (cuts.rule->Is(TensorRule::kTransposed)) {
          std::iter_swap(strides.rbegin(), strides.rbegin() + 1);
        }
        const auto [known, is_new] = tensors_.try_emplace(piece.tensor, manifest_.tensor_count());
        if (is_new) {
          manifest_.AddTensor(piece.tensor->name, piece.tensor->shape, piece.tensor->dtype);
        }
        manifest_.AddShard(known->second, parameter.format, piece.box, {0, end_bytes_, strides});
      }
      end_bytes_ += ElementCount(piece.held) * element_bytes;
    }
    PadTo(parameter.offset_bytes + SizeBytesOf(parameter));  // A number that no tensor fills.
    parameters_.push_back(std::move(parameter));
  }

  WorkerLayout Finish() && {
    // Memory of no bytes cannot be registered; a rank of a generic model may hold nothing.
    PadTo(std::max(RoundUp(end_bytes_, kAlignmentBytes), kAlignmentBytes));
    manifest_.AddRegion("weights", end_bytes_);
    return {std::move(manifest_), std::move(parameters_)};
  }

 private:
  // Declares all up to `offset_bytes` padding.
  void PadTo(uint64_t offset_bytes) {
    if (offset_bytes == end_bytes_) return;
    manifest_.AddPadding(1, {static_cast<int64_t>(offset_bytes - end_bytes_)},
                         {0, end_bytes_, {1}});
    end_bytes_ = offset_bytes;
  }

  // Declares what lies behind `filled` in any axis of the array `held` padding.
  void PadAround(absl::Span<const int64_t> filled, absl::Span<const int64_t> held,
                 absl::Span<const int64_t> strides, uint32_t element_bytes) {
    std::vector<int64_t> extents(held.begin(), held.end());
    for (size_t d = 0; d < held.size(); ++d) {
      extents[d] = held[d] - filled[d];
      if (ElementCount(extents) > 0) {
        const auto behind = static_cast<uint64_t>(filled[d] * strides[d]);
        manifest_.AddPadding(element_bytes, extents,
                             {0, end_bytes_ + behind * element_bytes, strides});
      }
      extents[d] = filled[d];
    }
  }

  Manifest manifest_;
  std::vector<Parameter> parameters_;
  absl::flat_hash_map<const CheckpointTensor*, uint32_t> tensors_;  // Their manifest indices.
  uint64_t end_bytes_ = 0;
};

// SGLang (0.5.23) makes experts of every layer of this family.
absl::Status CheckSparseLayers(const ModelConfig& config, Engine engine) {
  if (engine != Engine::kSglang || config.family == nullptr ||
      config.family->id != FamilyId::kQwen3Moe) {
    return absl::OkStatus();
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.IsSparse(layer)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer,
                     " of the model has no experts (\"mlp_only_layers\", "
                     "\"decoder_sparse_step\"); sglang gives every layer of family ",
                     config.family->name, " experts; vllm does not"));
  }
  return absl::OkStatus();
}

absl::Status CheckSharding(const ModelConfig& config, const WorkerSharding& sharding, uint32_t rank,
                           const Serving& serving) {
  WAYBILL_RETURN_IF_ERROR(sharding.Check());
  if (rank >= sharding.world()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", rank, ": ", ToString(sharding),
                                                   " has ", sharding.world(), " ranks"));
  }
  if (config.family == nullptr && serving.quantisation) {
    return absl::InvalidArgumentError(absl::StrCat(
        "quantise a generic model: which of its tensors are weights of layers is not known (",
        config.generic_reason, ")"));
  }
  if (sharding.mxfp4 != Mxfp4Kernel::kTriton && !config.has(Block::kPackedExperts)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mxfp4=", Name(sharding.mxfp4), ": the model has no experts in MXFP4"));
  }
  if (config.family == nullptr && (sharding.ep > 1 || sharding.engine != Engine::kVllm)) {
    return absl::InvalidArgumentError(absl::StrCat("sharding ", ToString(sharding),
                                                   ": a generic model has only tp and dp (",
                                                   config.generic_reason, ")"));
  }
  WAYBILL_RETURN_IF_ERROR(CheckSparseLayers(config, sharding.engine));
  return CutExperts(config, sharding.ExpertShare(rank), sharding.uneven_experts).status();
}

}  // namespace

absl::StatusOr<WorkerLayout> MakeWorkerLayout(absl::Span<const ModelParameter> parameters,
                                              const ModelConfig& config,
                                              const WorkerSharding& sharding, uint32_t rank,
                                              const Serving& serving) {
  WAYBILL_RETURN_IF_ERROR(CheckSharding(config, sharding, rank, serving));
  const Cutter cutter(config, sharding, rank, serving);
  // Heads first: they are what limits tp most, and what a user knows.
  for (const ModelParameter& parameter : parameters) {
    if (parameter.rule->cut != Cut::kQueryHeads) continue;
    WAYBILL_RETURN_IF_ERROR(cutter.RangeOf(*parameter.parts[0]).status());
    break;
  }
  Memory memory;
  std::vector<Cuts> experts_scales;
  for (const ModelParameter& parameter : parameters) {
    // An engine's own numbers are there if the model itself is quantised.
    if (parameter.parts.empty() && !(serving.quantisation && config.quantisation)) continue;
    if (parameter.rule->where != Where::kExpert) {
      for (Cuts& scales : experts_scales) memory.Add(std::move(scales));
      experts_scales.clear();
    }
    WAYBILL_ASSIGN_OR_RETURN(const std::optional<Quantisation> quantisation,
                             QuantisationOf(parameter, serving, config, sharding));
    WAYBILL_ASSIGN_OR_RETURN(Cuts cuts, cutter.Cut(parameter, quantisation));
    std::optional<Cuts> scales;
    if (quantisation) scales = ScalesOf(cuts);
    memory.Add(std::move(cuts));
    if (!scales) continue;
    if (parameter.rule->where == Where::kExpert) {
      experts_scales.push_back(*std::move(scales));
    } else {
      memory.Add(*std::move(scales));
    }
  }
  return std::move(memory).Finish();
}

absl::StatusOr<WorkerLayout> MakeWorkerLayout(absl::Span<const CheckpointTensor> tensors,
                                              const ModelConfig& config,
                                              const WorkerSharding& sharding, uint32_t rank,
                                              const Serving& serving) {
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<ModelTensor> found, FindTensors(tensors, config));
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<ModelParameter> parameters,
                           FindParameters(found, config, sharding.engine));
  return MakeWorkerLayout(parameters, config, sharding, rank, serving);
}

}  // namespace waybill
