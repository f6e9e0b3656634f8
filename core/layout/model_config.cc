#include "core/layout/model_config.h"

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
  return result;
}

}  // namespace waybill
