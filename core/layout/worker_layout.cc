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

// A parameter with the boxes that it takes from its parts.
struct Cuts {
  Parameter parameter;
  const ModelParameter* model;
  std::vector<Box> boxes;    // One for each part.
  int64_t padding_rows = 0;  // Behind them.
};

std::vector<int64_t> Extents(const Box& box, bool transposed) {
  std::vector<int64_t> extents;
  extents.reserve(static_cast<size_t>(box.dimensions()));
  for (int d = 0; d < box.dimensions(); ++d) extents.push_back(box.extent(d));
  if (transposed) std::reverse(extents.begin(), extents.end());
  return extents;
}

absl::StatusOr<Cuts> CutParameter(const ModelParameter& model, uint32_t tp, uint32_t tp_rank,
                                  const Serving& serving,
                                  const std::optional<Quantisation>& quantisation) {
  Cuts cuts{.model = &model};
  cuts.parameter.name = model.name;
  const Dtype stored = model.parts[0].tensor->dtype;
  cuts.parameter.format.dtype = IsFloat(stored) ? serving.dtype.value_or(stored) : stored;
  if (quantisation) cuts.parameter.format = Format::Quantised(*quantisation);
  for (const ParameterPart& part : model.parts) {
    const absl::Status convertible =
        CheckConversion(Format{part.tensor->dtype}, cuts.parameter.format);
    if (!convertible.ok()) {
      return While(
          absl::StrCat("tensor \"", part.tensor->name, "\" in parameter \"", model.name, "\""),
          convertible);
    }
    WAYBILL_ASSIGN_OR_RETURN(const CutRange range,
                             CutPart(part, tp, tp_rank, VocabularyRows::kPadded));
    Box box = part.box;
    if (box.dimensions() > 0) {
      const int64_t origin = box.begin(part.cut_axis);
      box.Set(part.cut_axis, origin + range.begin, origin + range.end);
    }
    cuts.padding_rows += range.padding;
    std::vector<int64_t> extents = Extents(box, model.transposed);
    if (cuts.boxes.empty()) {
      cuts.parameter.shape = std::move(extents);
    } else {
      cuts.parameter.shape[0] += extents[0];
    }
    cuts.boxes.push_back(box);
  }
  if (cuts.padding_rows > 0) cuts.parameter.shape[0] += cuts.padding_rows;
  return cuts;
}

// The scales of a parameter that is quantised.
Cuts ScalesOf(const Cuts& cuts) {
  const Quantisation& q = cuts.parameter.format.quantisation;
  Cuts scales{.model = cuts.model};
  scales.parameter.name = ScaleName(cuts.parameter.name, q);
  scales.parameter.format = Format::Scales(q);
  scales.parameter.shape = {0, 0};
  for (size_t i = 0; i < cuts.boxes.size(); ++i) {
    const Extents2 cell = ScaleExtents(q, cuts.model->parts[i].tensor->shape);
    const Box cells = CellsMeeting(cuts.boxes[i], cell);
    scales.parameter.shape[0] += cells.extent(0);
    scales.parameter.shape[1] = cells.extent(1);
    scales.boxes.push_back(cells);
  }
  return scales;
}

// The manifest's tensors, each once.
using TensorIndices = absl::flat_hash_map<const CheckpointTensor*, uint32_t>;

// Shards of one parameter whose place is known.
void AddShards(const Cuts& cuts, TensorIndices& tensors, Manifest& manifest) {
  const Parameter& parameter = cuts.parameter;
  const uint32_t element_bytes = ElementBytes(parameter.format);
  std::vector<int64_t> strides(parameter.shape.size());
  RowMajorStrides(parameter.shape, absl::MakeSpan(strides));
  std::vector<int64_t> stored_strides = strides;
  if (cuts.model->transposed) std::reverse(stored_strides.begin(), stored_strides.end());

  uint64_t offset_bytes = parameter.offset_bytes;
  for (size_t i = 0; i < cuts.boxes.size(); ++i) {
    const Box& box = cuts.boxes[i];
    if (box.empty()) continue;
    const CheckpointTensor* tensor = cuts.model->parts[i].tensor;
    const auto [known, is_new] = tensors.try_emplace(tensor, manifest.tensor_count());
    if (is_new) manifest.AddTensor(tensor->name, tensor->shape, tensor->dtype);
    manifest.AddShard(known->second, parameter.format, box, {0, offset_bytes, stored_strides});
    offset_bytes += static_cast<uint64_t>(box.element_count()) * element_bytes;
  }
  if (cuts.padding_rows > 0) {
    std::vector<int64_t> extents = parameter.shape;
    extents[0] = cuts.padding_rows;
    manifest.AddPadding(element_bytes, extents, {0, offset_bytes, strides});
  }
}

uint64_t SizeBytesOf(const Parameter& parameter) {
  return static_cast<uint64_t>(Box::Whole(parameter.shape).element_count()) *
         ElementBytes(parameter.format);
}

}  // namespace

absl::StatusOr<WorkerLayout> MakeWorkerLayout(absl::Span<const CheckpointTensor> tensors,
                                              const ModelConfig& config,
                                              const WorkerSharding& sharding, uint32_t rank,
                                              const Serving& serving) {
  if (rank >= sharding.world()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", rank, ": ", ToString(sharding),
                                                   " has ", sharding.world(), " ranks"));
  }
  if (config.family == nullptr && serving.quantisation) {
    return absl::InvalidArgumentError(absl::StrCat(
        "quantise a generic model: which of its tensors are weights of layers is not known (",
        config.generic_reason, ")"));
  }
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<ModelParameter> parameters,
                           FindParameters(tensors, config));
  std::vector<Cuts> all;
  all.reserve(parameters.size());
  uint64_t end_bytes = 0;
  const auto add = [&](Cuts cuts) {
    cuts.parameter.offset_bytes = end_bytes;
    end_bytes = RoundUp(end_bytes + SizeBytesOf(cuts.parameter), kAlignmentBytes);
    all.push_back(std::move(cuts));
  };
  for (const ModelParameter& parameter : parameters) {
    WAYBILL_ASSIGN_OR_RETURN(const std::optional<Quantisation> quantisation,
                             QuantisationOf(parameter, serving, config, sharding.tp));
    WAYBILL_ASSIGN_OR_RETURN(
        const Cuts cuts,
        CutParameter(parameter, sharding.tp, sharding.tp_rank(rank), serving, quantisation));
    add(cuts);
    if (quantisation) add(ScalesOf(cuts));
  }

  WorkerLayout layout;
  // Memory of no bytes cannot be registered; a rank of a generic model may hold nothing.
  end_bytes = std::max(end_bytes, kAlignmentBytes);
  layout.manifest.AddRegion("weights", end_bytes);
  TensorIndices indices;
  uint64_t covered = 0;
  const auto pad_to = [&](uint64_t offset_bytes) {
    if (offset_bytes == covered) return;
    layout.manifest.AddPadding(1, {static_cast<int64_t>(offset_bytes - covered)},
                               {0, covered, {1}});
  };
  for (Cuts& cuts : all) {
    pad_to(cuts.parameter.offset_bytes);
    AddShards(cuts, indices, layout.manifest);
    covered = cuts.parameter.offset_bytes + SizeBytesOf(cuts.parameter);
    layout.parameters.push_back(std::move(cuts.parameter));
  }
  pad_to(end_bytes);
  return layout;
}

}  // namespace waybill
