#include "core/layout/parameters.h"

#include <algorithm>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/narrow.h"
#include "core/base/status.h"

namespace waybill {
namespace {

constexpr int64_t kVocabularyMultiple = 64;  // vLLM's and SGLang's.

int64_t Length(Extent extent, const ModelConfig& config) {
  switch (extent) {
    case Extent::kNone:
      return 0;
    case Extent::kHidden:
      return config.hidden;
    case Extent::kInner:
      return config.inner;
    case Extent::kQueries:
      return config.heads * config.head_dim;
    case Extent::kKeys:
      return config.kv_heads * config.head_dim;
    case Extent::kHeadDim:
      return config.head_dim;
    case Extent::kVocabulary:
      return config.vocabulary;
    case Extent::kPositions:
      return config.positions;
  }
  return 0;
}

std::vector<int64_t> StoredShape(const ParameterRule& rule, const PartRule& part,
                                 const ModelConfig& config) {
  const int64_t rows = Length(part.rows, config) * part.sections;
  if (part.columns == Extent::kNone) return {rows};
  const int64_t columns = Length(part.columns, config);
  if (rule.stored_transposed) return {columns, rows};
  return {rows, columns};
}

// Calls visit(rule, layer) in the engine's order, layer by layer, until it fails.
absl::Status ForEachRule(
    const ModelConfig& config,
    const std::function<absl::Status(const ParameterRule& rule, int64_t layer)>& visit) {
  const auto all = [&](Where where, int64_t layer) -> absl::Status {
    for (const ParameterRule& rule : config.family->rules) {
      if (rule.where == where) WAYBILL_RETURN_IF_ERROR(visit(rule, layer));
    }
    return absl::OkStatus();
  };
  WAYBILL_RETURN_IF_ERROR(all(Where::kBeforeLayers, 0));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    WAYBILL_RETURN_IF_ERROR(all(Where::kLayer, layer));
  }
  WAYBILL_RETURN_IF_ERROR(all(Where::kAfterLayers, 0));
  return config.tied_head ? absl::OkStatus() : all(Where::kHead, 0);
}

// "layers.3.mlp.up_proj.weight", without the family's prefix; the head has none anyway.
std::string BareName(const Family& family, const ParameterRule& rule, int64_t layer,
                     absl::string_view name) {
  if (rule.where == Where::kLayer) return absl::StrCat(family.layer_infix, layer, ".", name);
  return std::string(name);
}

std::string FullName(const Family& family, const ParameterRule& rule, absl::string_view bare) {
  return absl::StrCat(rule.where == Where::kHead ? "" : family.prefix, bare);
}

class Finder {
 public:
  Finder(absl::Span<const CheckpointTensor> tensors, const ModelConfig& config)
      : tensors_(tensors), config_(config), family_(*config.family) {
    for (const CheckpointTensor& tensor : tensors) by_name_.emplace(tensor.name, &tensor);
  }

  absl::StatusOr<std::vector<ModelParameter>> Run() {
    WAYBILL_RETURN_IF_ERROR(ForEachRule(
        config_, [this](const ParameterRule& rule, int64_t layer) { return Add(rule, layer); }));
    for (const CheckpointTensor& tensor : tensors_) {
      if (!used_.contains(&tensor) && !Ignored(tensor.name)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor \"", tensor.name, "\" ", ShapeToString(tensor.shape), ": a model of family ",
            family_.name, " with ", config_.layers, " layers has none of that name"));
      }
    }
    return std::move(parameters_);
  }

 private:
  absl::Status Add(const ParameterRule& rule, int64_t layer) {
    ModelParameter parameter{.where = rule.where, .layer = layer};
    parameter.name = FullName(family_, rule, BareName(family_, rule, layer, rule.parameter));
    for (const PartRule& part : rule.parts) {
      const std::string bare = BareName(family_, rule, layer, part.tensor);
      const CheckpointTensor* tensor = Find(FullName(family_, rule, bare), bare);
      if (tensor == nullptr) {
        if (rule.need == Need::kWhenStored && parameter.parts.empty()) return absl::OkStatus();
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor \"", FullName(family_, rule, bare), "\" is missing, which a model of family ",
            family_.name, " with ", config_.layers, " layers has"));
      }
      const std::vector<int64_t> shape = StoredShape(rule, part, config_);
      if (tensor->shape != shape) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor \"", tensor->name, "\": its shape is ", ShapeToString(tensor->shape),
            ", by config.json it has to be ", ShapeToString(shape)));
      }
      used_.insert(tensor);
      parameter.transposed = rule.stored_transposed && shape.size() == 2;
      parameter.parts.push_back(MakePart(part, *tensor, parameter.transposed));
    }
    parameters_.push_back(std::move(parameter));
    return absl::OkStatus();
  }

  ParameterPart MakePart(const PartRule& rule, const CheckpointTensor& tensor,
                         bool transposed) const {
    const int rows_axis = transposed ? 1 : 0;
    ParameterPart part{.tensor = &tensor, .box = Box::Whole(tensor.shape), .cut = rule.cut};
    const int64_t rows = Length(rule.rows, config_);
    part.box.Set(rows_axis, rule.section * rows, (rule.section + 1) * rows);
    part.cut_axis = rule.cut == Cut::kColumns ? 1 - rows_axis : rows_axis;
    part.head_count = rule.cut == Cut::kKvHeads ? config_.kv_heads : config_.heads;
    return part;
  }

  const CheckpointTensor* Find(absl::string_view full, absl::string_view bare) const {
    auto found = by_name_.find(full);
    if (found == by_name_.end()) found = by_name_.find(bare);
    return found == by_name_.end() ? nullptr : found->second;
  }

  bool Ignored(absl::string_view name) const {
    if (config_.tied_head && name == kHeadName) return true;
    return std::any_of(family_.ignored.begin(), family_.ignored.end(),
                       [&](absl::string_view end) { return absl::EndsWith(name, end); });
  }

  absl::Span<const CheckpointTensor> tensors_;
  const ModelConfig& config_;
  const Family& family_;
  absl::flat_hash_map<absl::string_view, const CheckpointTensor*> by_name_;
  absl::flat_hash_set<const CheckpointTensor*> used_;
  std::vector<ModelParameter> parameters_;
};

}  // namespace

absl::StatusOr<std::vector<ModelParameter>> FindParameters(
    absl::Span<const CheckpointTensor> tensors, const ModelConfig& config) {
  if (config.family != nullptr) return Finder(tensors, config).Run();
  std::vector<ModelParameter> parameters;
  for (const CheckpointTensor& tensor : tensors) {
    // A number alone has no rows to cut.
    const Cut cut = tensor.shape.empty() ? Cut::kWhole : Cut::kChunks;
    parameters.push_back(
        {.name = tensor.name,
         .where = Where::kBeforeLayers,
         .parts = {{.tensor = &tensor, .box = Box::Whole(tensor.shape), .cut = cut}}});
  }
  return parameters;
}

std::vector<CheckpointTensor> RequiredTensors(const ModelConfig& config, Dtype dtype) {
  std::vector<CheckpointTensor> tensors;
  if (config.family == nullptr) return tensors;
  const absl::Status never_fails =
      ForEachRule(config, [&](const ParameterRule& rule, int64_t layer) {
        if (rule.need != Need::kRequired) return absl::OkStatus();
        for (const PartRule& part : rule.parts) {
          if (part.section > 0) continue;
          const std::string bare = BareName(*config.family, rule, layer, part.tensor);
          tensors.push_back({.name = FullName(*config.family, rule, bare),
                             .dtype = dtype,
                             .shape = StoredShape(rule, part, config)});
        }
        return absl::OkStatus();
      });
  never_fails.IgnoreError();
  return tensors;
}

CutRange TorchChunk(int64_t extent, uint32_t count, uint32_t index) {
  const int64_t size = (extent + count - 1) / count;
  return {std::min(extent, size * index), std::min(extent, size * (int64_t{index} + 1))};
}

absl::StatusOr<CutRange> CutPart(const ParameterPart& part, uint32_t tp, uint32_t tp_rank,
                                 VocabularyRows vocabulary_rows) {
  if (part.box.dimensions() == 0) return CutRange{0, 1};
  const int64_t extent = part.box.extent(part.cut_axis);
  const auto cannot = [&](int64_t count, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", part.tensor->name, "\": its ",
                                                   count, " ", what, " do not divide by tp=", tp));
  };
  switch (part.cut) {
    case Cut::kWhole:
      return CutRange{0, extent};
    case Cut::kChunks:
      return TorchChunk(extent, tp, tp_rank);
    case Cut::kRows:
    case Cut::kColumns: {
      if (extent % tp != 0) return cannot(extent, part.cut == Cut::kRows ? "rows" : "columns");
      const int64_t size = extent / tp;
      return CutRange{size * tp_rank, size * (int64_t{tp_rank} + 1)};
    }
    case Cut::kQueryHeads: {
      if (part.head_count % tp != 0) return cannot(part.head_count, "heads");
      const int64_t size = extent / tp;
      return CutRange{size * tp_rank, size * (int64_t{tp_rank} + 1)};
    }
    case Cut::kKvHeads: {
      const int64_t heads = part.head_count;
      const int64_t head_dim = extent / heads;
      if (tp > heads) {
        if (tp % heads != 0) {
          return absl::InvalidArgumentError(absl::StrCat("tensor \"", part.tensor->name,
                                                         "\": tp=", tp, " is no multiple of its ",
                                                         heads, " key/value heads"));
        }
        const int64_t head = tp_rank / (tp / heads);
        return CutRange{head * head_dim, (head + 1) * head_dim};
      }
      if (heads % tp != 0) return cannot(heads, "key/value heads");
      const int64_t size = extent / tp;
      return CutRange{size * tp_rank, size * (int64_t{tp_rank} + 1)};
    }
    case Cut::kVocabulary: {
      if (vocabulary_rows == VocabularyRows::kChunked) return TorchChunk(extent, tp, tp_rank);
      const auto padded =
          static_cast<int64_t>(RoundUp(static_cast<uint64_t>(extent), kVocabularyMultiple));
      if (padded % tp != 0) {
        return cannot(padded, absl::StrCat("rows (", extent, ", padded to a multiple of ",
                                           kVocabularyMultiple, ")"));
      }
      const int64_t size = padded / tp;
      const CutRange range{std::min(extent, size * tp_rank),
                           std::min(extent, size * (int64_t{tp_rank} + 1))};
      return CutRange{range.begin, range.end, size - range.extent()};
    }
  }
  return absl::InternalError("a cut of no kind");
}

}  // namespace waybill
