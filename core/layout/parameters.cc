// SPDX-License-Identifier: Apache-2.0

#include "core/layout/parameters.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/narrow.h"
#include "core/base/status.h"

namespace waybill {
namespace {

constexpr int64_t kVocabularyMultiple = 64;  // vLLM's and SGLang's.
constexpr int64_t kMegatronVocabularyMultiple = 128;
constexpr absl::string_view kExpertInfix = "mlp.experts.";

constexpr TensorRule kGenericTensor{Block::kDecoder, Where::kBeforeLayers, Cut::kChunks, {}, ""};
// A number alone has no rows to cut.
constexpr TensorRule kGenericNumber{Block::kDecoder, Where::kBeforeLayers, Cut::kWhole, {}, ""};

std::vector<int64_t> StoredShape(const TensorRule& rule, const ModelConfig& config) {
  std::vector<int64_t> shape;
  shape.reserve(static_cast<size_t>(rule.dimensions()));
  for (int d = 0; d < rule.dimensions(); ++d) {
    shape.push_back(config.extent(rule.shape[static_cast<size_t>(d)]));
  }
  if (rule.sections > 1) shape[static_cast<size_t>(rule.cut_axis())] *= rule.sections;
  return shape;
}

using Visit = absl::FunctionRef<absl::Status(const TensorRule&, int64_t layer, int64_t expert)>;

// Calls visit() in the order of the rules, layer by layer, until it fails.
absl::Status ForEachTensor(const ModelConfig& config, Visit visit) {
  const absl::Span<const TensorRule> rules = TensorRules();
  const auto outside = [&](Where where) -> absl::Status {
    for (const TensorRule& rule : rules) {
      if (rule.where == where && config.has(rule.block)) {
        WAYBILL_RETURN_IF_ERROR(visit(rule, -1, -1));
      }
    }
    return absl::OkStatus();
  };
  WAYBILL_RETURN_IF_ERROR(outside(Where::kBeforeLayers));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (size_t i = 0; i < rules.size(); ++i) {
      if (!config.HasInLayer(rules[i], layer)) continue;
      if (rules[i].where == Where::kLayer) WAYBILL_RETURN_IF_ERROR(visit(rules[i], layer, -1));
      if (rules[i].where != Where::kExpert) continue;
      size_t end = i;
      while (end < rules.size() && rules[end].where == Where::kExpert) ++end;
      for (int64_t expert = 0; expert < config.experts(); ++expert) {
        for (size_t k = i; k < end; ++k) {
          WAYBILL_RETURN_IF_ERROR(visit(rules[k], layer, expert));
        }
      }
      i = end - 1;
    }
  }
  WAYBILL_RETURN_IF_ERROR(outside(Where::kAfterLayers));
  return config.tied_head ? absl::OkStatus() : outside(Where::kHead);
}

// Returns such as "layers.3.mlp.experts.7.", without the family's prefix. Empty outside the layers.
std::string ScopeName(const Family& family, int64_t layer, int64_t expert) {
  if (layer < 0) return "";
  if (expert < 0) return absl::StrCat(family.layer_infix(), layer, ".");
  return absl::StrCat(family.layer_infix(), layer, ".", kExpertInfix, expert, ".");
}

absl::string_view Prefix(const Family& family, const TensorRule& rule) {
  return rule.where == Where::kHead ? "" : family.prefix();
}

size_t IndexOf(const TensorRule& rule) { return static_cast<size_t>(&rule - TensorRules().data()); }

class Finder {
 public:
  Finder(absl::Span<const CheckpointTensor> tensors, const ModelConfig& config)
      : tensors_(tensors), config_(config), family_(*config.family), used_(tensors.size()) {
    by_name_.reserve(tensors.size());
    for (const CheckpointTensor& tensor : tensors) by_name_.emplace(tensor.name, &tensor);
  }

  absl::StatusOr<std::vector<ModelTensor>> Run() {
    found_.reserve(tensors_.size());
    WAYBILL_RETURN_IF_ERROR(
        ForEachTensor(config_, [this](const TensorRule& rule, int64_t layer, int64_t expert) {
          return Add(rule, layer, expert);
        }));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const CheckpointTensor& tensor = tensors_[i];
      if (used_[i] == 0 && !Ignored(tensor.name)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor \"", tensor.name, "\" ", ShapeToString(tensor.shape), ": a model of family ",
            family_.name, " with ", config_.layers, " layers has none of that name"));
      }
    }
    return std::move(found_);
  }

 private:
  absl::Status Add(const TensorRule& rule, int64_t layer, int64_t expert) {
    if (rule.engine_only()) {
      found_.push_back({nullptr, &rule, layer, expert});
      return absl::OkStatus();
    }
    const std::string full =
        absl::StrCat(Prefix(family_, rule), ScopeName(family_, layer, expert), rule.name);
    auto found = by_name_.find(full);
    if (found == by_name_.end()) {
      found = by_name_.find(absl::string_view(full).substr(Prefix(family_, rule).size()));
    }
    if (found == by_name_.end()) {
      if (config_.IsOptional(rule)) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", full, "\" is missing, which a model of family ", family_.name,
                       " with ", config_.layers, " layers has"));
    }
    const CheckpointTensor& tensor = *found->second;
    if (ShapeOf(rule) != tensor.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.name, "\": its shape is ", ShapeToString(tensor.shape),
                       ", by config.json it has to be ", ShapeToString(ShapeOf(rule))));
    }
    used_[static_cast<size_t>(&tensor - tensors_.data())] = 1;
    found_.push_back({&tensor, &rule, layer, expert});
    return absl::OkStatus();
  }

  const std::vector<int64_t>& ShapeOf(const TensorRule& rule) {
    std::vector<int64_t>& shape = shapes_[IndexOf(rule)];
    if (shape.empty()) shape = StoredShape(rule, config_);
    return shape;
  }

  bool Ignored(absl::string_view name) const {
    if (config_.tied_head && name == kHeadName) return true;
    return family_.Ignores(name) || IsOfDraftLayer(name);
  }

  bool IsOfDraftLayer(absl::string_view name) const {
    const std::string layers = absl::StrCat(family_.prefix(), family_.layer_infix());
    if (config_.draft_layers == 0 || !absl::StartsWith(name, layers)) return false;
    name.remove_prefix(layers.size());
    int64_t layer;
    return absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) && layer >= config_.layers &&
           layer < config_.layers + config_.draft_layers;
  }

  const absl::Span<const CheckpointTensor> tensors_;
  const ModelConfig& config_;
  const Family& family_;
  absl::flat_hash_map<absl::string_view, const CheckpointTensor*> by_name_;
  // The stored shape by the rule's index, empty until ShapeOf() is asked for it.
  std::vector<std::vector<int64_t>> shapes_{TensorRules().size()};
  std::vector<char> used_;
  std::vector<ModelTensor> found_;
};

// What an engine makes of the tensors of one rule.
struct Fused {
  std::string parameter;  // The name without that of the layer.
  size_t parts = 1;
};

// If the rule's name has `part` between its dots, returns the name with `replacement` there.
std::optional<std::string> Replace(absl::string_view name, absl::string_view part,
                                   absl::string_view replacement) {
  for (size_t at = name.find(part); at != name.npos; at = name.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) {
      return absl::StrCat(name.substr(0, at), replacement, name.substr(end));
    }
  }
  return std::nullopt;
}

bool HasRule(const ModelConfig& config, Where where, absl::string_view name) {
  return std::any_of(TensorRules().begin(), TensorRules().end(), [&](const TensorRule& rule) {
    return rule.where == where && config.has(rule.block) && rule.name == name;
  });
}

Fused Fuse(const TensorRule& rule, const ModelConfig& config, Engine engine) {
  Fused fused{rule.name};
  for (const FusingRule& fusing : FusingRules()) {
    if (fusing.where != rule.where || (fusing.engines >> static_cast<int>(engine) & 1) == 0) {
      continue;
    }
    const std::vector<absl::string_view> parts = absl::StrSplit(fusing.parts, ' ');
    for (const absl::string_view part : parts) {
      const std::optional<std::string> name = Replace(rule.name, part, fusing.parameter);
      // It is fused only if the model has all the parts.
      if (!name || !std::all_of(parts.begin(), parts.end(), [&](absl::string_view other) {
            return HasRule(config, rule.where, *Replace(rule.name, part, other));
          })) {
        continue;
      }
      fused = {rule.where == Where::kExpert ? absl::StrCat("mlp.", *name) : *name, parts.size()};
    }
  }
  for (const RenamingRule& renaming : RenamingRules()) {
    if (renaming.engine == engine && renaming.family == config.family->id &&
        absl::StartsWith(fused.parameter, renaming.from)) {
      fused.parameter.replace(0, absl::string_view(renaming.from).size(), renaming.to);
    }
  }
  return fused;
}

// The parameters of one layer, or of what lies before or behind the layers, named below its name.
class ScopeParameters {
 public:
  void Add(const ModelTensor& tensor, const Fused& fused) {
    // The parameter is usually one of the last.
    auto at = std::find_if(parameters_.rbegin(), parameters_.rend(),
                           [&](const ModelParameter& p) { return p.name == fused.parameter; });
    if (at == parameters_.rend()) {
      parameters_.push_back({fused.parameter, tensor.rule, tensor.layer, {}});
      at = parameters_.rbegin();
    }
    if (tensor.tensor != nullptr) at->parts.push_back(&tensor);
  }

  // Puts the parameters that begin with `moved` behind the last one that begins with `after`, if
  // there is one.
  void Move(absl::string_view moved, absl::string_view after) {
    const auto is_place = [&](const ModelParameter& p) {
      return absl::StartsWith(p.name, after) && !absl::StartsWith(p.name, moved);
    };
    if (std::none_of(parameters_.begin(), parameters_.end(), is_place)) return;
    std::vector<ModelParameter> rest, taken;
    size_t place = 0;
    for (ModelParameter& parameter : parameters_) {
      if (absl::StartsWith(parameter.name, moved)) {
        taken.push_back(std::move(parameter));
        continue;
      }
      rest.push_back(std::move(parameter));
      if (is_place(rest.back())) place = rest.size();
    }
    rest.insert(rest.begin() + static_cast<std::ptrdiff_t>(place),
                std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end()));
    parameters_ = std::move(rest);
  }

  // Appends the parameters to `all` under their full names.
  void Finish(const Family& family, std::vector<ModelParameter>& all) {
    for (ModelParameter& parameter : parameters_) {
      parameter.name = absl::StrCat(Prefix(family, *parameter.rule),
                                    ScopeName(family, parameter.layer, -1), parameter.name);
      all.push_back(std::move(parameter));
    }
    parameters_.clear();
  }

 private:
  std::vector<ModelParameter> parameters_;
};

}  // namespace

absl::StatusOr<std::vector<ModelTensor>> FindTensors(absl::Span<const CheckpointTensor> tensors,
                                                     const ModelConfig& config) {
  if (config.family != nullptr) return Finder(tensors, config).Run();
  std::vector<ModelTensor> found;
  for (const CheckpointTensor& tensor : tensors) {
    found.push_back({&tensor, tensor.shape.empty() ? &kGenericNumber : &kGenericTensor});
  }
  return found;
}

std::vector<CheckpointTensor> RequiredTensors(const ModelConfig& config, Dtype dtype) {
  std::vector<CheckpointTensor> tensors;
  if (config.family == nullptr) return tensors;
  const absl::Status never_fails = ForEachTensor(config, [&](const TensorRule& rule, int64_t layer,
                                                             int64_t expert) {
    if (config.IsOptional(rule) || rule.engine_only()) return absl::OkStatus();
    const Dtype stored = rule.Is(TensorRule::kBytes) ? Dtype::kU8
                         : rule.Is(TensorRule::kF32) ? Dtype::kF32
                                                     : dtype;
    tensors.push_back({.name = absl::StrCat(Prefix(*config.family, rule),
                                            ScopeName(*config.family, layer, expert), rule.name),
                       .dtype = stored,
                       .shape = StoredShape(rule, config)});
    return absl::OkStatus();
  });
  never_fails.IgnoreError();
  return tensors;
}

absl::StatusOr<std::vector<ModelParameter>> FindParameters(absl::Span<const ModelTensor> tensors,
                                                           const ModelConfig& config,
                                                           Engine engine) {
  std::vector<ModelParameter> all;
  if (config.family == nullptr) {
    for (const ModelTensor& tensor : tensors) {
      all.push_back({tensor.tensor->name, tensor.rule, -1, {&tensor}});
    }
    return all;
  }
  // By the rule's index, without a name until a tensor of the rule is seen.
  std::vector<Fused> fused(TensorRules().size());
  ScopeParameters scope;
  const auto begins_scope = [&](size_t i) {
    return i == tensors.size() || tensors[i].layer != tensors[i - 1].layer ||
           (tensors[i].rule->where != tensors[i - 1].rule->where && tensors[i].layer < 0);
  };
  const uint8_t other_engine =
      engine == Engine::kVllm ? TensorRule::kSglangOnly : TensorRule::kVllmOnly;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorRule& rule = *tensors[i].rule;
    Fused& known = fused[IndexOf(rule)];
    if (known.parameter.empty()) known = Fuse(rule, config, engine);
    if ((rule.marks & other_engine) == 0) scope.Add(tensors[i], known);
    if (!begins_scope(i + 1)) continue;
    for (const OrderRule& order : OrderRules()) {
      if (order.engine == engine && (order.families & Bit(config.family->id)) != 0) {
        scope.Move(order.moved, order.after);
      }
    }
    scope.Finish(*config.family, all);
  }
  for (const ModelParameter& parameter : all) {
    const size_t parts = fused[IndexOf(*parameter.rule)].parts;
    if (parameter.parts.size() % parts != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter \"", parameter.name, "\": ", Name(engine), " fuses ", parts,
                       " tensors to it, and the checkpoint has only ", parameter.parts.size(),
                       ", such as \"", parameter.parts[0]->tensor->name, "\""));
    }
  }
  return all;
}

CutRange TorchChunk(int64_t extent, Share share) {
  const int64_t size = (extent + share.count - 1) / share.count;
  return {std::min(extent, size * share.index),
          std::min(extent, size * (int64_t{share.index} + 1))};
}

absl::StatusOr<ExpertRange> CutExperts(const ModelConfig& config, Share share, bool uneven) {
  const int64_t experts = config.experts();
  if (share.count > 1 && experts == 0) {
    return absl::InvalidArgumentError(absl::StrCat("ep=", share.count, ": a model of family ",
                                                   config.family_name(), " has no experts"));
  }
  if (experts % share.count != 0 && !(uneven && share.count <= experts)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ep=", share.count, " does not divide the model's ", experts, " experts; ep may be ",
        Divisors(experts), ", or with experts=uneven any number up to ", experts));
  }
  return ExpertsOf(share, experts);
}

absl::StatusOr<CutRange> CutTensor(const ModelTensor& tensor, const ModelConfig& config,
                                   Share share, VocabularyRows vocabulary_rows,
                                   absl::string_view word) {
  const TensorRule& rule = *tensor.rule;
  if (tensor.tensor->shape.empty()) return CutRange{0, 1};
  const int64_t extent = tensor.tensor->shape[static_cast<size_t>(rule.cut_axis())] / rule.sections;
  const auto cannot = [&](int64_t count, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", tensor.tensor->name, "\": its ", count, " ", what, " do not divide by ", word,
        "=", share.count, "; ", word, " may be ", Divisors(count)));
  };
  const auto equal = [&](int64_t all) {
    const int64_t size = all / share.count;
    return CutRange{size * share.index, size * (int64_t{share.index} + 1)};
  };
  switch (rule.cut) {
    case Cut::kWhole:
      return CutRange{0, extent};
    case Cut::kFirstRank:
      if (vocabulary_rows != VocabularyRows::kPadded || share.index == 0) {
        return CutRange{0, extent};
      }
      return CutRange{0, 0, extent};
    case Cut::kChunks:
      return TorchChunk(extent, share);
    case Cut::kRows:
    case Cut::kColumns:
      if (extent % share.count != 0) {
        return cannot(extent, rule.cut == Cut::kRows ? "rows" : "columns");
      }
      return equal(extent);
    case Cut::kQueryHeads: {
      const int64_t heads = config.extent(Extent::kHeads);
      if (heads % share.count != 0) return cannot(heads, "heads");
      return equal(extent);
    }
    case Cut::kKvHeads: {
      const int64_t heads = config.kv_heads;
      if (share.count > heads) {
        if (share.count % heads != 0) {
          return absl::InvalidArgumentError(
              absl::StrCat("tensor \"", tensor.tensor->name, "\": ", word, "=", share.count,
                           " is no multiple of its ", heads, " key/value heads; ", word,
                           " may be a divisor or a multiple of ", heads));
        }
        const int64_t head = share.index / (share.count / heads);
        const int64_t head_dim = extent / heads;
        return CutRange{head * head_dim, (head + 1) * head_dim};
      }
      if (heads % share.count != 0) return cannot(heads, "key/value heads");
      return equal(extent);
    }
    case Cut::kVocabulary: {
      if (vocabulary_rows == VocabularyRows::kChunked) return TorchChunk(extent, share);
      const int64_t multiple = vocabulary_rows == VocabularyRows::kPadded
                                   ? kVocabularyMultiple
                                   : kMegatronVocabularyMultiple * share.count;
      const auto padded = static_cast<int64_t>(
          RoundUp(static_cast<uint64_t>(extent), static_cast<uint64_t>(multiple)));
      if (padded % share.count != 0) {
        return cannot(padded,
                      absl::StrCat("rows (", extent, ", padded to a multiple of ", multiple, ")"));
      }
      CutRange range = equal(padded);
      const int64_t size = range.extent();
      range.begin = std::min(extent, range.begin);
      range.end = std::min(extent, range.end);
      range.padding = size - range.extent();
      return range;
    }
  }
  return absl::InternalError("a cut of no kind");
}

}  // namespace waybill
