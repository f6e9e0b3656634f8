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

struct Piece {
  const CheckpointTensor* tensor;
  Box box;
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

// The extents of a piece in memory: of transposed tensors the last two axes change places.
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

  // The range that tensor parallelism leaves the rank.
  absl::StatusOr<CutRange> RangeOf(const ModelTensor& tensor) const {
    const Share share = ShareOf(*tensor.rule);
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
  Format FormatOf(const ModelTensor& part, const std::optional<Quantisation>& quantisation) const {
    if (quantisation) return Format::Quantised(*quantisation);
    const Dtype stored = part.tensor->dtype;
    if (!IsFloat(stored)) return Format{stored};
    if (part.rule->Is(TensorRule::kF32) || part.rule->Is(TensorRule::kHeldAsF32)) {
      return Format{Dtype::kF32};
    }
    return Format{serving_.dtype.value_or(stored)};
  }

  Share ShareOf(const TensorRule& rule) const {
    if (config_.family != nullptr) return sharding_.TensorShare(rule, *config_.family, rank_);
    return {sharding_.tp, sharding_.engine_rank(rank_) % sharding_.tp};
  }

  // Adds each section of the part, and to the parameter's shape what it takes there.
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
      Box held = box;  // With what is padding.
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
      std::vector<int64_t> extents = HeldExtents(held, rule);
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
      cuts.pieces.push_back({&tensor, box});
    }
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  const WorkerSharding& sharding_;
  const uint32_t rank_;
  const Serving& serving_;
};

// The scales of a parameter that is quantised.
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
    scales.pieces.push_back({piece.tensor, cells});
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
      if (piece.box.empty()) continue;
      const std::vector<int64_t> extents = HeldExtents(piece.box, *cuts.rule);
      strides.resize(extents.size());
      RowMajorStrides(extents, absl::MakeSpan(strides));
      if (cuts.rule->Is(TensorRule::kTransposed)) {
        std::iter_swap(strides.rbegin(), strides.rbegin() + 1);
      }
      const auto [known, is_new] = tensors_.try_emplace(piece.tensor, manifest_.tensor_count());
      if (is_new) {
        manifest_.AddTensor(piece.tensor->name, piece.tensor->shape, piece.tensor->dtype);
      }
      manifest_.AddShard(known->second, parameter.format, piece.box, {0, end_bytes_, strides});
      end_bytes_ += static_cast<uint64_t>(piece.box.element_count()) * element_bytes;
    }
    PadTo(parameter.offset_bytes + SizeBytesOf(parameter), element_bytes);
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
  void PadTo(uint64_t offset_bytes, uint32_t element_bytes = 1) {
    if (offset_bytes == end_bytes_) return;
    manifest_.AddPadding(element_bytes,
                         {static_cast<int64_t>((offset_bytes - end_bytes_) / element_bytes)},
                         {0, end_bytes_, {1}});
    end_bytes_ = offset_bytes;
  }

  Manifest manifest_;
  std::vector<Parameter> parameters_;
  absl::flat_hash_map<const CheckpointTensor*, uint32_t> tensors_;  // Each once.
  uint64_t end_bytes_ = 0;
};

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
  if (config.family == nullptr && (sharding.ep > 1 || sharding.engine != Engine::kVllm)) {
    return absl::InvalidArgumentError(absl::StrCat("sharding ", ToString(sharding),
                                                   ": a generic model has only tp and dp (",
                                                   config.generic_reason, ")"));
  }
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
