#include "core/layout/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {
namespace {

using nlohmann::json;

// Products of two of them times three sections stay far below 2^63.
constexpr int64_t kMaxNumber = int64_t{1} << 29;

absl::Status Invalid(absl::string_view key, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("config.json: \"", key, "\" ", problem));
}

// Empty keys and missing or null values give `fallback`; without one (0) they are errors.
absl::StatusOr<int64_t> Number(const json& config, absl::string_view key, int64_t fallback) {
  const auto found = key.empty() ? config.end() : config.find(std::string(key));
  if (found == config.end() || found->is_null()) {
    if (fallback == 0) return Invalid(key, "is missing");
    return fallback;
  }
  if (!found->is_number_unsigned() || found->get<uint64_t>() == 0 ||
      found->get<uint64_t>() > static_cast<uint64_t>(kMaxNumber)) {
    return Invalid(key, absl::StrCat("is ", found->dump(-1, ' ', true),
                                     ", allowed are whole numbers from 1 to ", kMaxNumber));
  }
  return found->get<int64_t>();
}

absl::StatusOr<bool> Flag(const json& config, absl::string_view key, bool fallback) {
  const auto found = config.find(std::string(key));
  if (found == config.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) {
    return Invalid(key, absl::StrCat("is ", found->dump(-1, ' ', true), ", not true or false"));
  }
  return found->get<bool>();
}

// What is not understood is said when somebody wants to serve by it: trainers do not.
void ReadQuantisation(const json& config, ModelConfig& result) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return;
  const auto problem = [&](auto... what) { result.quantisation_problem = absl::StrCat(what...); };
  if (!found->is_object()) return problem("is no object");
  const std::string method = found->value("quant_method", json()).dump();
  if (method != "\"fp8\"") return problem("has quant_method ", method, ", known is \"fp8\"");
  const std::string format = found->value("fmt", json("e4m3")).dump();
  if (format != "\"e4m3\"") return problem("has fmt ", format, ", known is \"e4m3\"");
  Quantisation q;
  const json block = found->value("weight_block_size", json());
  if (block.is_null()) {
    q.block_rows = q.block_columns = 0;
  } else if (block.is_array() && block.size() == 2 && block[0].is_number_unsigned() &&
             block[1].is_number_unsigned()) {
    q.block_rows = static_cast<uint32_t>(std::min<uint64_t>(block[0].get<uint64_t>(), 1 << 20));
    q.block_columns = static_cast<uint32_t>(std::min<uint64_t>(block[1].get<uint64_t>(), 1 << 20));
  } else {
    return problem("has weight_block_size ", block.dump(), ", which is not two whole numbers");
  }
  if (found->value("scale_fmt", json()).dump() == "\"ue8m0\"") {
    q.rounding = ScaleRounding::kPowerOfTwoUp;
  }
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    for (const json& module : found->value(key, json::array())) {
      if (module.is_string()) result.not_quantised.push_back(module.get<std::string>());
    }
  }
  result.quantisation = q;
}

}  // namespace

ModelConfig ModelConfig::Generic(absl::string_view reason) {
  ModelConfig config;
  config.generic_reason = std::string(reason);
  return config;
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json) {
  const json config = json::parse(config_json.begin(), config_json.end(), nullptr, false);
  if (!config.is_object()) return absl::InvalidArgumentError("config.json: not a JSON object");
  const auto architectures = config.find("architectures");
  if (architectures == config.end() || !architectures->is_array() || architectures->size() != 1 ||
      !architectures->front().is_string()) {
    return ModelConfig::Generic("config.json names no one architecture");
  }
  const auto architecture = architectures->front().get<std::string>();
  const Family* family = FamilyOfArchitecture(architecture);
  if (family == nullptr) {
    return ModelConfig::Generic(
        absl::StrCat("architecture \"", architecture, "\" is of no family that is known"));
  }

  ModelConfig result;
  result.family = family;
  const ConfigKeys& keys = family->keys;
  WAYBILL_ASSIGN_OR_RETURN(result.hidden, Number(config, keys.hidden, 0));
  WAYBILL_ASSIGN_OR_RETURN(result.inner, Number(config, keys.inner, 4 * result.hidden));
  WAYBILL_ASSIGN_OR_RETURN(result.layers, Number(config, keys.layers, 0));
  WAYBILL_ASSIGN_OR_RETURN(result.heads, Number(config, keys.heads, 0));
  WAYBILL_ASSIGN_OR_RETURN(result.kv_heads, Number(config, keys.kv_heads, result.heads));
  WAYBILL_ASSIGN_OR_RETURN(
      result.head_dim,
      Number(config, keys.head_dim,
             result.hidden % result.heads == 0 ? result.hidden / result.heads : 0));
  WAYBILL_ASSIGN_OR_RETURN(result.vocabulary, Number(config, "vocab_size", 0));
  if (!keys.positions.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(result.positions, Number(config, keys.positions, 0));
  }
  WAYBILL_ASSIGN_OR_RETURN(result.tied_head,
                           Flag(config, "tie_word_embeddings", keys.tied_by_default));
  ReadQuantisation(config, result);
  return result;
}

}  // namespace waybill
