// SPDX-License-Identifier: Apache-2.0

#include "core/layout/serving.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// The finest scales that an engine's kernels accept.
constexpr int64_t kFinestScale = 16;
constexpr int64_t kFinestExpertScale = 32;  // vLLM's.

// Returns true for the weight of a linear layer. Engines never convert embeddings, routers and
// norms.
bool IsLayersMatrix(const ModelParameter& parameter) {
  const TensorRule& rule = *parameter.rule;
  const int matrix_axes = rule.dimensions() - (rule.Is(TensorRule::kStacked) ? 1 : 0);
  return (rule.where == Where::kLayer || rule.where == Where::kExpert) && matrix_axes == 2 &&
         !rule.Is(TensorRule::kKept) &&
         std::all_of(parameter.parts.begin(), parameter.parts.end(), [](const ModelTensor* part) {
           const Dtype dtype = part->tensor->dtype;
           return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16;
         });
}

bool IsNotConverted(absl::string_view tensor, const ModelConfig& config) {
  return std::any_of(config.not_quantised.begin(), config.not_quantised.end(),
                     [&](const std::string& module) {
                       return tensor == module || absl::StartsWith(tensor, module + ".");
                     });
}

// Returns the coarsest grid, the block or a part of it by halving, on which all cuts of the ranks
// and all edges of the fused parts lie. Engines know one grid for the whole parameter.
absl::StatusOr<uint32_t> FitScales(uint32_t block, const ModelParameter& parameter,
                                   const ModelConfig& config, int axis, uint32_t tp) {
  if (block <= 1) return block;
  uint32_t scale = block;
  for (uint32_t rank = 0; rank < tp; ++rank) {
    int64_t fused = 0;
    for (const ModelTensor* part : parameter.parts) {
      WAYBILL_ASSIGN_OR_RETURN(const CutRange range,
                               CutTensor(*part, config, {tp, rank}, VocabularyRows::kPadded, "tp"));
      const bool cut = part->rule->cut != Cut::kWhole && part->rule->cut_axis() == axis;
      const int64_t begin = cut ? range.begin : 0;
      while ((begin % scale != 0 || fused % scale != 0) && scale > 1) scale /= 2;
      if (axis == 0) fused += cut ? range.extent() : part->tensor->shape[0];
    }
  }
  if (scale == block || scale >= kFinestScale) return scale;
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter \"", parameter.name, "\": with tp=", tp, " its parts begin within blocks of ",
      block, axis == 0 ? " rows" : " columns", ", and not at multiples of ", kFinestScale,
      ", down to which scales can be repeated"));
}

// vLLM has one grid for both stacked parameters of a layer's experts: the blocks, or if a rank's
// part of an expert is not a multiple of them, squares that divide everything.
absl::Status FitExpertScales(const ModelParameter& parameter, const ModelConfig& config,
                             const WorkerSharding& sharding, Quantisation& q) {
  if (q.block_rows <= 1 || q.block_columns <= 1) return absl::OkStatus();
  const int64_t parts = sharding.engine_ranks() / sharding.ep;
  const int64_t inner = config.extent(Extent::kExpertInner) / parts;
  if (inner % q.block_rows == 0 && (parts == 1 || inner % q.block_columns == 0)) {
    return absl::OkStatus();
  }
  const int64_t cell = std::gcd(std::gcd<int64_t>(q.block_rows, q.block_columns),
                                std::gcd(inner, config.extent(Extent::kHidden)));
  if (sharding.engine == Engine::kVllm && cell >= kFinestExpertScale) {
    q.scale_rows = q.scale_columns = static_cast<uint32_t>(cell);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("parameter \"", parameter.name, "\": each of ", parts, " ranks has ", inner,
                   " rows of an expert, which are not whole blocks of ", q.block_rows, "; ",
                   Name(sharding.engine),
                   sharding.engine == Engine::kVllm
                       ? absl::StrCat(" repeats scales down to squares of ", kFinestExpertScale)
                       : " wants whole blocks"));
}

}  // namespace

absl::StatusOr<Serving> ParseServing(absl::string_view format, absl::string_view dtype,
                                     const ModelConfig& config) {
  Serving serving;
  if (!dtype.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(serving.dtype, ParseDtype(dtype));
  }
  if (format == "bf16") {
    if (serving.dtype && serving.dtype != Dtype::kBf16) {
      return absl::InvalidArgumentError(
          absl::StrCat("format bf16 and dtype ", dtype, " contradict each other"));
    }
    serving.dtype = Dtype::kBf16;
  } else if (!format.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(serving.quantisation, NamedQuantisation(format));
  } else if (!config.quantisation_problem.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: quantization_config ", config.quantisation_problem,
                     "; name a format (bf16 serves it unquantised) to go by that instead"));
  } else {
    serving.quantisation = config.quantisation;
  }
  return serving;
}

absl::StatusOr<std::optional<Quantisation>> QuantisationOf(const ModelParameter& parameter,
                                                           const Serving& serving,
                                                           const ModelConfig& config,
                                                           const WorkerSharding& sharding) {
  if (!serving.quantisation || parameter.parts.empty() || !IsLayersMatrix(parameter)) {
    return std::nullopt;
  }
  const auto first = parameter.parts.begin();
  const auto end = std::find_if(first, parameter.parts.end(), [&](const ModelTensor* part) {
    return part->expert > (*first)->expert;
  });
  const auto parts = static_cast<size_t>(end - first);
  const auto kept = static_cast<size_t>(std::count_if(first, end, [&](const ModelTensor* part) {
    return IsNotConverted(part->tensor->name, config);
  }));
  if (kept == parts) return std::nullopt;
  if (kept > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter.name, "\": config.json keeps ", kept, " of its ",
                     parts, " parts unquantised, and they are fused"));
  }
  if (parameter.rule->Is(TensorRule::kTransposed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter.name,
                     "\" is stored transposed, which is not quantised on the way"));
  }
  Quantisation q = *serving.quantisation;
  if (parameter.rule->where == Where::kExpert) {
    WAYBILL_RETURN_IF_ERROR(FitExpertScales(parameter, config, sharding, q));
    return q;
  }
  const uint32_t tp = sharding.TensorShare(*parameter.rule, *config.family, 0).count;
  WAYBILL_ASSIGN_OR_RETURN(const uint32_t rows, FitScales(q.block_rows, parameter, config, 0, tp));
  WAYBILL_ASSIGN_OR_RETURN(const uint32_t columns,
                           FitScales(q.block_columns, parameter, config, 1, tp));
  if (rows != q.block_rows) q.scale_rows = rows;
  if (columns != q.block_columns) q.scale_columns = columns;
  return q;
}

std::string ScaleName(absl::string_view parameter, const Quantisation& quantisation) {
  const bool blocks = quantisation.block_rows > 1 && quantisation.block_columns > 1;
  return absl::StrCat(parameter, blocks ? "_scale_inv" : "_scale");
}

}  // namespace waybill
