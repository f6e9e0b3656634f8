// SPDX-License-Identifier: Apache-2.0

#include "core/layout/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/layout/bounded_json.h"

namespace waybill {
namespace {

using nlohmann::json;

// The largest number of config.json. The product of two numbers and three sections is below 2^63.
constexpr int64_t kMaxNumber = int64_t{1} << 29;

absl::Status Invalid(absl::string_view key, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("config.json: \"", key, "\" ", problem));
}

// Reads a number from 1 on. An empty key and a missing or null value give `fallback`, and are
// errors if it is 0.
absl::StatusOr<int64_t> Number(const json& config, absl::string_view key, int64_t fallback) {
  const auto found = key.empty() ? config.end() : config.find(std::string(key));
  if (found == config.end() || found->is_null()) {
    if (fallback == 0) return Invalid(key, "is missing");
    return fallback;
  }
  if (!found->is_number_unsigned() || found->get<uint64_t>() == 0 ||
      found->get<uint64_t>() > static_cast<uint64_t>(kMaxNumber)) {
    return Invalid(key, absl::StrCat("is ", ShortText(*found),
                                     ", allowed are whole numbers from 1 to ", kMaxNumber));
  }
  return found->get<int64_t>();
}

// Reads a number from 0 on, and otherwise as Number().
absl::StatusOr<int64_t> Count(const json& config, absl::string_view key, int64_t fallback) {
  const auto found = config.find(std::string(key));
  if (found != config.end() && *found == json(0)) return 0;
  if (found == config.end() || found->is_null()) return fallback;
  return Number(config, key, 1);
}

absl::StatusOr<bool> Flag(const json& config, absl::string_view key, bool fallback) {
  const auto found = config.find(std::string(key));
  if (found == config.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) {
    return Invalid(key, absl::StrCat("is ", ShortText(*found), ", not true or false"));
  }
  return found->get<bool>();
}

// The keys of quantization_config that say how elements are quantised, or that Waybill may ignore.
constexpr absl::string_view kQuantisationKeys[] = {
    "activation_scheme", "fmt",
    "ignored_layers",    "is_checkpoint_fp8_serialized",
    "kv_cache_scheme",   "modules_to_not_convert",
    "quant_method",      "scale_fmt",
    "weight_block_size",
};

// `value` is one of `known`, or nothing at all.
absl::Status CheckWord(const json& config, const char* key,
                       absl::Span<const absl::string_view> known) {
  const json value = config.value(key, json());
  if (value.is_null()) return absl::OkStatus();
  for (const absl::string_view word : known) {
    if (value == json(std::string(word))) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "has ", key, " ", ShortText(value), ", known is \"", absl::StrJoin(known, "\", \""), "\""));
}

// Reads the shape of blocks. Without one, a block is a whole matrix.
absl::Status ReadBlock(const json& config, Quantisation& q) {
  const json block = config.value("weight_block_size", json());
  if (block.is_null()) {
    q.block_rows = q.block_columns = 0;
    return absl::OkStatus();
  }
  if (!block.is_array() || block.size() != 2 || !block[0].is_number_unsigned() ||
      !block[1].is_number_unsigned()) {
    return absl::InvalidArgumentError(absl::StrCat("has weight_block_size ", ShortText(block),
                                                   ", which is not two whole numbers"));
  }
  q.block_rows = static_cast<uint32_t>(std::min<uint64_t>(block[0].get<uint64_t>(), 1 << 20));
  q.block_columns = static_cast<uint32_t>(std::min<uint64_t>(block[1].get<uint64_t>(), 1 << 20));
  return absl::OkStatus();
}

// Reads the names of modules that are not quantised. Patterns are refused, because nothing matches
// them with names.
absl::Status ReadKeptModules(const json& config, std::vector<std::string>& modules) {
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    const json list = config.value(key, json());
    if (list.is_null()) continue;
    if (!list.is_array()) {
      return absl::InvalidArgumentError(absl::StrCat("has ", key, " that is no list"));
    }
    for (const json& module : list) {
      if (!module.is_string() || absl::StartsWith(module.get<std::string>(), "re:")) {
        return absl::InvalidArgumentError(
            absl::StrCat("has ", key, " with ", ShortText(module), ", which is no module's name"));
      }
      modules.push_back(module.get<std::string>());
    }
  }
  return absl::OkStatus();
}

// Reads how elements are stored when an engine loads them, before its own step after loading. A key
// or value that is not known is refused, so that a method that packs or shuffles is not taken for
// plain FP8.
absl::StatusOr<Quantisation> ReadQuantisation(const json& config,
                                              std::vector<std::string>& not_quantised) {
  if (!config.is_object()) return absl::InvalidArgumentError("is no object");
  if (!config.contains("quant_method")) {
    return absl::InvalidArgumentError("has no quant_method, known is \"fp8\"");
  }
  WAYBILL_RETURN_IF_ERROR(CheckWord(config, "quant_method", {"fp8"}));
  WAYBILL_RETURN_IF_ERROR(CheckWord(config, "fmt", {"e4m3", "float8_e4m3fn"}));
  WAYBILL_RETURN_IF_ERROR(CheckWord(config, "scale_fmt", {"ue8m0"}));
  WAYBILL_RETURN_IF_ERROR(CheckWord(config, "activation_scheme", {"dynamic"}));
  for (const auto& [key, value] : config.items()) {
    if (std::find(std::begin(kQuantisationKeys), std::end(kQuantisationKeys), key) ==
        std::end(kQuantisationKeys)) {
      return absl::InvalidArgumentError(absl::StrCat("has \"", key, "\", which is not known"));
    }
  }
  Quantisation q;
  WAYBILL_RETURN_IF_ERROR(ReadBlock(config, q));
  WAYBILL_RETURN_IF_ERROR(ReadKeptModules(config, not_quantised));
  if (config.contains("scale_fmt") && config["scale_fmt"].is_string()) {
    q.rounding = ScaleRounding::kPowerOfTwoUp;
  }
  return q;
}

int64_t& At(ModelConfig& config, Extent extent) {
  return config.extents[static_cast<size_t>(extent)];
}

// Reads the numbers that all families have.
absl::Status ReadDecoder(const json& config, ModelConfig& result) {
  const ConfigKeys& keys = *result.family->keys;
  WAYBILL_ASSIGN_OR_RETURN(const int64_t hidden, Number(config, keys.hidden, 0));
  WAYBILL_ASSIGN_OR_RETURN(const int64_t heads, Number(config, keys.heads, 0));
  WAYBILL_ASSIGN_OR_RETURN(result.layers, Number(config, keys.layers, 0));
  WAYBILL_ASSIGN_OR_RETURN(result.kv_heads, Number(config, keys.kv_heads, heads));
  WAYBILL_ASSIGN_OR_RETURN(At(result, Extent::kInner), Number(config, keys.inner, 4 * hidden));
  const int64_t head_dim = hidden % heads == 0 ? hidden / heads : 0;
  if (result.has(Block::kGqa) || result.has(Block::kGpt2)) {
    WAYBILL_ASSIGN_OR_RETURN(At(result, Extent::kHeadDim), Number(config, keys.head_dim, head_dim));
  }
  WAYBILL_ASSIGN_OR_RETURN(At(result, Extent::kVocabularySize), Number(config, "vocab_size", 0));
  if (!keys.positions.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(At(result, Extent::kPositions), Number(config, keys.positions, 0));
  }
  WAYBILL_ASSIGN_OR_RETURN(result.tied_head,
                           Flag(config, "tie_word_embeddings", keys.tied_by_default));
  WAYBILL_ASSIGN_OR_RETURN(result.draft_layers, Count(config, "num_nextn_predict_layers", 0));
  At(result, Extent::kHidden) = hidden;
  At(result, Extent::kHeads) = heads;
  At(result, Extent::kQueries) = heads * result.extent(Extent::kHeadDim);
  At(result, Extent::kKeys) = result.kv_heads * result.extent(Extent::kHeadDim);
  WAYBILL_ASSIGN_OR_RETURN(const bool biases, Flag(config, "attention_bias", false));
  WAYBILL_ASSIGN_OR_RETURN(const bool norms, Flag(config, "use_qk_norm", false));
  if (result.family->id == FamilyId::kGlm4Moe) {
    if (biases) result.blocks |= Bit(Block::kQkvBiasRequired);
    if (norms) result.blocks |= Bit(Block::kQkNorm);
  }
  return absl::OkStatus();
}

absl::Status ReadLatentAttention(const json& config, ModelConfig& result) {
  WAYBILL_ASSIGN_OR_RETURN(const int64_t query, Count(config, "q_lora_rank", 0));
  WAYBILL_ASSIGN_OR_RETURN(const int64_t latent, Number(config, "kv_lora_rank", 0));
  WAYBILL_ASSIGN_OR_RETURN(const int64_t plain, Number(config, "qk_nope_head_dim", 0));
  WAYBILL_ASSIGN_OR_RETURN(const int64_t rope, Number(config, "qk_rope_head_dim", 0));
  WAYBILL_ASSIGN_OR_RETURN(const int64_t values, Number(config, "v_head_dim", 0));
  const int64_t heads = result.extent(Extent::kHeads);
  At(result, Extent::kQueryLatent) = query;
  At(result, Extent::kLatent) = latent;
  At(result, Extent::kLatentAndRope) = latent + rope;
  At(result, Extent::kLatentQueries) = heads * (plain + rope);
  At(result, Extent::kLatentKeys) = heads * (plain + values);
  At(result, Extent::kLatentValues) = heads * values;
  result.blocks |= Bit(query > 0 ? Block::kMlaLatentQuery : Block::kMlaPlainQuery);
  return absl::OkStatus();
}

absl::Status ReadExperts(const json& config, ModelConfig& result) {
  const FamilyId id = result.family->id;
  const bool is_qwen = id == FamilyId::kQwen3Moe;
  const bool is_gpt_oss = id == FamilyId::kGptOss;
  WAYBILL_ASSIGN_OR_RETURN(
      const int64_t experts,
      Number(config,
             is_qwen ? "num_experts" : (is_gpt_oss ? "num_local_experts" : "n_routed_experts"), 0));
  WAYBILL_ASSIGN_OR_RETURN(
      const int64_t inner,
      Number(config, is_gpt_oss ? "intermediate_size" : "moe_intermediate_size", 0));
  At(result, Extent::kExpertCount) = experts;
  At(result, Extent::kExpertInner) = inner;
  At(result, Extent::kTwiceExpertInner) = 2 * inner;
  if (is_gpt_oss) {
    const json quantised = config.value("quantization_config", json::object());
    const bool packed = quantised.is_object() && quantised.value("quant_method", json()) == "mxfp4";
    result.blocks |= Bit(packed ? Block::kPackedExperts : Block::kStackedExperts);
    At(result, Extent::kHiddenBlocks) = result.extent(Extent::kHidden) / 32;
    At(result, Extent::kInnerBlocks) = inner / 32;
    At(result, Extent::kBlockBytes) = 16;
    return absl::OkStatus();
  }
  if (is_qwen) {
    result.sparse_offset = 1;
    WAYBILL_ASSIGN_OR_RETURN(result.sparse_step, Number(config, "decoder_sparse_step", 1));
    const json dense = config.value("mlp_only_layers", json());
    if (dense.is_null()) return absl::OkStatus();
    if (!dense.is_array()) return Invalid("mlp_only_layers", "is no list");
    for (const json& layer : dense) {
      if (!layer.is_number_unsigned()) {
        return Invalid("mlp_only_layers",
                       absl::StrCat("has ", ShortText(layer), ", which is no layer's number"));
      }
      result.dense_layers.push_back(layer.get<int64_t>());
    }
    std::sort(result.dense_layers.begin(), result.dense_layers.end());
    return absl::OkStatus();
  }
  WAYBILL_ASSIGN_OR_RETURN(const int64_t shared, Count(config, "n_shared_experts", 0));
  At(result, Extent::kSharedInner) = shared * inner;
  if (shared > 0) result.blocks |= Bit(Block::kSharedExperts);
  if (config.value("topk_method", json()) == "noaux_tc") result.blocks |= Bit(Block::kRouterBias);
  WAYBILL_ASSIGN_OR_RETURN(result.first_sparse, Count(config, "first_k_dense_replace", 0));
  WAYBILL_ASSIGN_OR_RETURN(result.sparse_step, Number(config, "moe_layer_freq", 1));
  return absl::OkStatus();
}

}  // namespace

bool ModelConfig::IsSparse(int64_t layer) const {
  return experts() > 0 && layer >= first_sparse && (layer + sparse_offset) % sparse_step == 0 &&
         !std::binary_search(dense_layers.begin(), dense_layers.end(), layer);
}

bool ModelConfig::HasInLayer(const TensorRule& rule, int64_t layer) const {
  if (!has(rule.block)) return false;
  if (rule.block == Block::kDenseMlp || rule.block == Block::kDenseMlpBias) return !IsSparse(layer);
  if (rule.block >= Block::kRouter && rule.block <= Block::kPackedExperts) return IsSparse(layer);
  return true;
}

bool ModelConfig::IsOptional(const TensorRule& rule) const {
  switch (rule.block) {
    case Block::kQkvBias:
      return !has(Block::kQkvBiasRequired);
    case Block::kOtherBias:
      return !has(Block::kOtherBiasRequired);
    case Block::kDenseMlpBias:
      return true;
    default:
      return false;
  }
}

ModelConfig ModelConfig::Generic(absl::string_view reason) {
  ModelConfig config;
  config.generic_reason = std::string(reason);
  return config;
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json) {
  auto parsed = ParseBoundedJson(config_json);
  if (!parsed.ok()) return While("config.json", std::move(parsed).status());
  const json config = *std::move(parsed);
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
        absl::StrCat("architecture \"", architecture, "\" is not one of ",
                     absl::StrJoin(Families(), ", ", [](std::string* out, const Family& known) {
                       out->append(known.architecture);
                     })));
  }

  ModelConfig result;
  result.family = family;
  result.blocks = family->blocks;
  WAYBILL_RETURN_IF_ERROR(ReadDecoder(config, result));
  if (result.has(Block::kMla)) WAYBILL_RETURN_IF_ERROR(ReadLatentAttention(config, result));
  if (family->has_experts()) WAYBILL_RETURN_IF_ERROR(ReadExperts(config, result));
  const auto quantised = config.find("quantization_config");
  if (quantised == config.end() || quantised->is_null()) return result;
  // Packed experts move as bytes, and nothing else of such a model is quantised.
  if (result.has(Block::kPackedExperts)) return result;
  const absl::StatusOr<Quantisation> q = ReadQuantisation(*quantised, result.not_quantised);
  // Trainers do not need quantization_config, so a problem with it is reported by ParseServing().
  if (q.ok()) {
    result.quantisation = *q;
  } else {
    result.quantisation_problem = std::string(q.status().message());
  }
  return result;
}

}  // namespace waybill
