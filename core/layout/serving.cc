#include "core/layout/serving.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// No engine's kernels know finer ones.
constexpr int64_t kFinestScale = 16;

bool IsMatrixOfFloats(const ParameterPart& part) {
  const Dtype dtype = part.tensor->dtype;
  return part.box.dimensions() == 2 &&
         (dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16);
}

bool IsNotConverted(absl::string_view tensor, const ModelConfig& config) {
  return std::any_of(config.not_quantised.begin(), config.not_quantised.end(),
                     [&](const std::string& module) {
                       return tensor == module || absl::StartsWith(tensor, module + ".");
                     });
}

// The coarsest grid, of the block or halves of it, that all of the ranks' cuts lie on, and the
// parts' beginnings in what they are fused to: engines know one grid, the whole parameter's.
absl::StatusOr<uint32_t> FitScales(uint32_t block, const ModelParameter& parameter, int axis,
                                   uint32_t tp) {
  if (block <= 1) return block;
  uint32_t scale = block;
  for (uint32_t rank = 0; rank < tp; ++rank) {
    int64_t fused = 0;
    for (const ParameterPart& part : parameter.parts) {
      WAYBILL_ASSIGN_OR_RETURN(const CutRange range,
                               CutPart(part, tp, rank, VocabularyRows::kPadded));
      const bool cut = part.cut != Cut::kWhole && part.cut_axis == axis;
      const int64_t begin = cut ? range.begin : 0;
      while ((begin % scale != 0 || fused % scale != 0) && scale > 1) scale /= 2;
      if (axis == 0) fused += cut ? range.extent() : part.box.extent(0);
    }
  }
  if (scale == block || scale >= kFinestScale) return scale;
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter \"", parameter.name, "\": with tp=", tp, " its parts begin within blocks of ",
      block, axis == 0 ? " rows" : " columns", ", and not at multiples of ", kFinestScale,
      ", down to which scales can be repeated"));
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
                                                           const ModelConfig& config, uint32_t tp) {
  if (!serving.quantisation || parameter.where != Where::kLayer ||
      !std::all_of(parameter.parts.begin(), parameter.parts.end(), IsMatrixOfFloats)) {
    return std::nullopt;
  }
  const auto kept = static_cast<size_t>(std::count_if(
      parameter.parts.begin(), parameter.parts.end(),
      [&](const ParameterPart& part) { return IsNotConverted(part.tensor->name, config); }));
  if (kept == parameter.parts.size()) return std::nullopt;
  if (kept > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter.name, "\": config.json keeps ", kept, " of its ",
                     parameter.parts.size(), " parts unquantised, and they are fused"));
  }
  if (parameter.transposed) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter.name,
                     "\" is stored transposed, which is not quantised on the way"));
  }
  Quantisation q = *serving.quantisation;
  WAYBILL_ASSIGN_OR_RETURN(const uint32_t rows, FitScales(q.block_rows, parameter, 0, tp));
  WAYBILL_ASSIGN_OR_RETURN(const uint32_t columns, FitScales(q.block_columns, parameter, 1, tp));
  if (rows != q.block_rows) q.scale_rows = rows;
  if (columns != q.block_columns) q.scale_columns = columns;
  return q;
}

std::string ScaleName(absl::string_view parameter, const Quantisation& quantisation) {
  const bool blocks = quantisation.block_rows > 1 && quantisation.block_columns > 1;
  return absl::StrCat(parameter, blocks ? "_scale_inv" : "_scale");
}

}  // namespace waybill
