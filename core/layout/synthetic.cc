// SPDX-License-Identifier: Apache-2.0

#include "core/layout/synthetic.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/layout/model_config.h"
#include "core/layout/parameters.h"
#include "core/layout/safetensors_writer.h"

namespace waybill {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

struct Model {
  absl::string_view name;
  Dtype dtype;
  absl::string_view layers_key;
  const char* config;
};

#define WAYBILL_GPT2_CONFIG(embd, head, layer)                                                  \
  R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "torch_dtype": "float32",)"   \
  R"( "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "n_ctx": 1024,)"          \
  R"( "n_positions": 1024, "n_embd": )" #embd R"(, "n_head": )" #head R"(, "n_layer": )" #layer \
  R"(, "vocab_size": 50257, "bos_token_id": 50256, "eos_token_id": 50256})"

// The following two lack the closing bracket.
#define WAYBILL_QWEN3_MOE_CONFIG(hidden, inner, expert_inner, layers, heads, kv_heads, head_dim, \
                                 experts, vocabulary)                                            \
  R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",)"                     \
  R"( "torch_dtype": "bfloat16", "hidden_act": "silu", "hidden_size": )" #hidden                 \
  R"(, "intermediate_size": )" #inner R"(, "moe_intermediate_size": )" #expert_inner             \
  R"(, "num_hidden_layers": )" #layers R"(, "num_attention_heads": )" #heads                     \
  R"(, "num_key_value_heads": )" #kv_heads R"(, "head_dim": )" #head_dim                         \
  R"(, "num_experts": )" #experts R"(, "num_experts_per_tok": 8, "vocab_size": )" #vocabulary    \
  R"(, "tie_word_embeddings": false)"

#define WAYBILL_DEEPSEEK_V3_CONFIG(hidden, inner, expert_inner, layers, heads, experts, dense,     \
                                   query, latent, nope, rope, value, vocabulary)                   \
  R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",)"                   \
  R"( "torch_dtype": "bfloat16", "hidden_act": "silu", "hidden_size": )" #hidden                   \
  R"(, "intermediate_size": )" #inner R"(, "moe_intermediate_size": )" #expert_inner               \
  R"(, "num_hidden_layers": )" #layers R"(, "num_attention_heads": )" #heads                       \
  R"(, "num_key_value_heads": )" #heads R"(, "n_routed_experts": )" #experts                       \
  R"(, "n_shared_experts": 1, "num_experts_per_tok": 8, "topk_method": "noaux_tc",)"               \
  R"( "first_k_dense_replace": )" #dense R"(, "q_lora_rank": )" #query                             \
  R"(, "kv_lora_rank": )" #latent R"(, "qk_nope_head_dim": )" #nope                                \
  R"(, "qk_rope_head_dim": )" #rope R"(, "v_head_dim": )" #value R"(, "vocab_size": )" #vocabulary \
  R"(, "tie_word_embeddings": false)"
#define WAYBILL_BLOCK_FP8                                              \
  R"(, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",)" \
  R"( "activation_scheme": "dynamic", "weight_block_size": [128, 128]})"

constexpr Model kModels[] = {
    {"gpt2", Dtype::kF32, "n_layer", WAYBILL_GPT2_CONFIG(768, 12, 12)},
    {"gpt2-medium", Dtype::kF32, "n_layer", WAYBILL_GPT2_CONFIG(1024, 16, 24)},
    {"gpt2-large", Dtype::kF32, "n_layer", WAYBILL_GPT2_CONFIG(1280, 20, 36)},
    {"qwen3-0.6b", Dtype::kBf16, "num_hidden_layers",
     R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
         "hidden_act": "silu", "rms_norm_eps": 1e-06, "attention_bias": false,
         "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000,
         "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": 151645})"},
    {"qwen3-8b", Dtype::kBf16, "num_hidden_layers",
     R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
         "hidden_act": "silu", "rms_norm_eps": 1e-06, "attention_bias": false,
         "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000,
         "tie_word_embeddings": false, "bos_token_id": 151643, "eos_token_id": 151645})"},
    {"llama-3.1-8b", Dtype::kBf16, "num_hidden_layers",
     R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
         "hidden_act": "silu", "rms_norm_eps": 1e-05, "attention_bias": false, "mlp_bias": false,
         "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0,
         "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                          "original_max_position_embeddings": 8192, "rope_type": "llama3"},
         "tie_word_embeddings": false, "bos_token_id": 128000, "eos_token_id": 128001})"},
    {"qwen3-30b-a3b", Dtype::kBf16, "num_hidden_layers",
     WAYBILL_QWEN3_MOE_CONFIG(2048, 6144, 768, 48, 32, 4, 128, 128, 151936) "}"},
    {"qwen3-235b-a22b", Dtype::kBf16, "num_hidden_layers",
     WAYBILL_QWEN3_MOE_CONFIG(4096, 12288, 1536, 94, 64, 4, 128, 128, 151936) "}"},
    {"deepseek-v3", Dtype::kBf16, "num_hidden_layers",
     WAYBILL_DEEPSEEK_V3_CONFIG(7168, 18432, 2048, 61, 128, 256, 3, 1536, 512, 128, 64, 128, 129280)
         WAYBILL_BLOCK_FP8 "}"},
    {"kimi-k2", Dtype::kBf16, "num_hidden_layers",
     WAYBILL_DEEPSEEK_V3_CONFIG(7168, 18432, 2048, 61, 64, 384, 1, 1536, 512, 128, 64, 128, 163840)
         WAYBILL_BLOCK_FP8 "}"},
    // https://huggingface.co/zai-org/GLM-4.5
    {"glm-4.5", Dtype::kBf16, "num_hidden_layers",
     R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "torch_dtype": "bfloat16",
         "hidden_act": "silu", "attention_bias": true, "use_qk_norm": true,
         "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
         "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8,
         "head_dim": 128, "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8,
         "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "vocab_size": 151552,
         "tie_word_embeddings": false})"},
    // https://huggingface.co/openai/gpt-oss-120b
    {"gpt-oss-120b", Dtype::kBf16, "num_hidden_layers",
     R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "torch_dtype": "bfloat16",
         "hidden_act": "silu", "attention_bias": true, "hidden_size": 2880,
         "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
         "num_experts_per_tok": 4, "vocab_size": 201088, "tie_word_embeddings": false,
         "quantization_config": {"quant_method": "mxfp4"}})"},
    // Twins of the two MoE families, with everything that those have, for a laptop.
    {"tiny-qwen3-moe", Dtype::kBf16, "num_hidden_layers",
     WAYBILL_QWEN3_MOE_CONFIG(256, 512, 256, 3, 8, 2, 32, 8, 1000) R"(, "mlp_only_layers": [1]})"},
    {"tiny-deepseek-v3", Dtype::kBf16, "num_hidden_layers",
     WAYBILL_DEEPSEEK_V3_CONFIG(256, 512, 256, 3, 8, 8, 1, 128, 128, 64, 32, 64, 1000) "}"},
};

// The finaliser of splitmix64: a bijection, so no two words of a tensor are drawn from one.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t KeyOf(uint64_t seed, absl::string_view name) {
  uint64_t key = Mix(seed + 0x9e3779b97f4a7c15);
  for (const char c : name) key = Mix(key ^ static_cast<unsigned char>(c));
  return key;
}

// The bits of a word of elements that are random, and what the others are. Signs, mantissas and the
// two lowest bits of the exponents are random, so magnitudes are from 2^-7 to 2^-3.
struct Mold {
  uint64_t random;
  uint64_t fixed;
};

Mold MoldOf(Dtype dtype) {
  if (dtype == Dtype::kU8) return {~uint64_t{0}, 0};
  if (dtype == Dtype::kF32) return {0x81ff'ffff'81ff'ffff, 0x3c00'0000'3c00'0000};
  return {0x81ff'81ff'81ff'81ff, 0x3c00'3c00'3c00'3c00};
}

}  // namespace

std::vector<absl::string_view> SyntheticModelNames() {
  std::vector<absl::string_view> names;
  for (const Model& model : kModels) names.push_back(model.name);
  return names;
}

absl::StatusOr<SyntheticModel> MakeSyntheticModel(absl::string_view name,
                                                  std::optional<int64_t> layers) {
  const Model* model = nullptr;
  std::string known;
  for (const Model& m : kModels) {
    if (m.name == name) model = &m;
    absl::StrAppend(&known, known.empty() ? "" : ", ", m.name);
  }
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("model \"", name, "\" is not one of ", known));
  }
  auto json = nlohmann::json::parse(model->config);
  auto& layer_count = json[std::string(model->layers_key)];
  if (layers) {
    if (*layers < 1 || *layers > layer_count.get<int64_t>()) {
      return absl::InvalidArgumentError(absl::StrCat("model \"", name, "\": ", *layers,
                                                     " layers, allowed are 1 to ",
                                                     layer_count.get<int64_t>()));
    }
    layer_count = *layers;
  }
  SyntheticModel result;
  result.config_json = json.dump(1) + "\n";
  WAYBILL_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(result.config_json));
  result.tensors = RequiredTensors(config, model->dtype);
  return result;
}

void FillSynthetic(uint64_t seed, const CheckpointTensor& tensor, uint64_t offset_bytes,
                   absl::Span<std::byte> bytes) {
  const uint64_t key = KeyOf(seed, tensor.name);
  const Mold mold = MoldOf(tensor.dtype);
  const auto word = [&](uint64_t index) {
    return (Mix(key + index * 0x9e3779b97f4a7c15) & mold.random) | mold.fixed;
  };
  const uint64_t first = offset_bytes / sizeof(uint64_t);
  const size_t whole = bytes.size() / sizeof(uint64_t);
  for (size_t i = 0; i < whole; ++i) {
    const uint64_t value = word(first + i);
    std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
  }
  if (const size_t rest = bytes.size() % sizeof(uint64_t); rest != 0) {
    const uint64_t value = word(first + whole);
    std::memcpy(bytes.data() + whole * sizeof(value), &value, rest);
  }
}

absl::Status WriteSyntheticCheckpoint(absl::string_view name, std::optional<int64_t> layers,
                                      uint64_t seed, const std::string& directory) {
  WAYBILL_ASSIGN_OR_RETURN(const SyntheticModel model, MakeSyntheticModel(name, layers));
  return WriteCheckpoint(
      directory, model.config_json, model.tensors, kMaxFileBytes, Durability::kCached,
      [seed](const CheckpointTensor& tensor, uint64_t offset_bytes, absl::Span<std::byte> bytes) {
        FillSynthetic(seed, tensor, offset_bytes, bytes);
      });
}

}  // namespace waybill
