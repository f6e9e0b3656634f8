// SPDX-License-Identifier: Apache-2.0

#include "core/layout/families.h"

#include "absl/strings/match.h"

namespace waybill {
namespace {

using enum Block;
using enum Cut;
using enum Extent;
using enum Where;
using Rule = TensorRule;

constexpr uint16_t kStackedTransposed = Rule::kStacked | Rule::kTransposed;
constexpr uint16_t kStackedBytes = Rule::kStacked | Rule::kBytes;

constexpr Rule kRules[] = {
    {kDecoder, kBeforeLayers, kVocabulary, {kVocabularySize, kHidden}, "embed_tokens.weight"},

    {kSinks, kLayer, kQueryHeads, {kHeads}, "self_attn.sinks"},
    {kGqa, kLayer, kQueryHeads, {kQueries, kHidden}, "self_attn.q_proj.weight"},
    {kGqa, kLayer, kKvHeads, {kKeys, kHidden}, "self_attn.k_proj.weight"},
    {kGqa, kLayer, kKvHeads, {kKeys, kHidden}, "self_attn.v_proj.weight"},
    {kQkvBias, kLayer, kQueryHeads, {kQueries}, "self_attn.q_proj.bias"},
    {kQkvBias, kLayer, kKvHeads, {kKeys}, "self_attn.k_proj.bias"},
    {kQkvBias, kLayer, kKvHeads, {kKeys}, "self_attn.v_proj.bias"},
    {kGqa, kLayer, kColumns, {kHidden, kQueries}, "self_attn.o_proj.weight"},
    {kOtherBias, kLayer, kWhole, {kHidden}, "self_attn.o_proj.bias"},
    {kGqa, kLayer, kWhole, {}, "self_attn.attn.q_scale", Rule::kVllmOnly},
    {kGqa, kLayer, kWhole, {}, "self_attn.attn.k_scale", Rule::kVllmOnly},
    {kGqa, kLayer, kWhole, {}, "self_attn.attn.v_scale", Rule::kVllmOnly},
    {kGqa, kLayer, kWhole, {}, "self_attn.attn.prob_scale", Rule::kVllmOnly},
    {kCacheScales, kLayer, kWhole, {}, "self_attn.attn.k_scale", Rule::kSglangOnly},
    {kCacheScales, kLayer, kWhole, {}, "self_attn.attn.v_scale", Rule::kSglangOnly},
    {kQkNorm, kLayer, kWhole, {kHeadDim}, "self_attn.q_norm.weight"},
    {kQkNorm, kLayer, kWhole, {kHeadDim}, "self_attn.k_norm.weight"},

    {kMlaLatentQuery, kLayer, kWhole, {kQueryLatent, kHidden}, "self_attn.q_a_proj.weight"},
    {kMla, kLayer, kWhole, {kLatentAndRope, kHidden}, "self_attn.kv_a_proj_with_mqa.weight"},
    {kMlaLatentQuery, kLayer, kWhole, {kQueryLatent}, "self_attn.q_a_layernorm.weight"},
    {kMlaLatentQuery,
     kLayer,
     kQueryHeads,
     {kLatentQueries, kQueryLatent},
     "self_attn.q_b_proj.weight"},
    {kMlaPlainQuery, kLayer, kQueryHeads, {kLatentQueries, kHidden}, "self_attn.q_proj.weight"},
    {kMla, kLayer, kWhole, {kLatent}, "self_attn.kv_a_layernorm.weight"},
    {kMla, kLayer, kQueryHeads, {kLatentKeys, kLatent}, "self_attn.kv_b_proj.weight"},
    {kMla, kLayer, kColumns, {kHidden, kLatentValues}, "self_attn.o_proj.weight"},
    {kMla, kLayer, kWhole, {}, "self_attn.attn_mqa.k_scale", Rule::kSglangOnly},
    {kMla, kLayer, kWhole, {}, "self_attn.attn_mqa.v_scale", Rule::kSglangOnly},
    {kMla, kLayer, kWhole, {}, "self_attn.attn_mha.k_scale", Rule::kSglangOnly},
    {kMla, kLayer, kWhole, {}, "self_attn.attn_mha.v_scale", Rule::kSglangOnly},

    {kDenseMlp, kLayer, kRows, {kInner, kHidden}, "mlp.gate_proj.weight"},
    {kDenseMlp, kLayer, kRows, {kInner, kHidden}, "mlp.up_proj.weight"},
    {kDenseMlpBias, kLayer, kRows, {kInner}, "mlp.gate_proj.bias"},
    {kDenseMlpBias, kLayer, kRows, {kInner}, "mlp.up_proj.bias"},
    {kDenseMlp, kLayer, kColumns, {kHidden, kInner}, "mlp.down_proj.weight"},
    {kDenseMlpBias, kLayer, kWhole, {kHidden}, "mlp.down_proj.bias"},

    {kRouter, kLayer, kWhole, {kExpertCount, kHidden}, "mlp.gate.weight", Rule::kKept},
    {kRouterF32,
     kLayer,
     kWhole,
     {kExpertCount, kHidden},
     "mlp.gate.weight",
     Rule::kKept | Rule::kHeldAsF32},
    {kRouterBias, kLayer, kWhole, {kExpertCount}, "mlp.gate.e_score_correction_bias", Rule::kF32},
    {kSharedExperts, kLayer, kRows, {kSharedInner, kHidden}, "mlp.shared_experts.gate_proj.weight"},
    {kSharedExperts, kLayer, kRows, {kSharedInner, kHidden}, "mlp.shared_experts.up_proj.weight"},
    {kSharedExperts,
     kLayer,
     kColumns,
     {kHidden, kSharedInner},
     "mlp.shared_experts.down_proj.weight"},
    {kExperts, kExpert, kRows, {kExpertInner, kHidden}, "gate_proj.weight"},
    {kExperts, kExpert, kRows, {kExpertInner, kHidden}, "up_proj.weight"},
    {kExperts, kExpert, kColumns, {kHidden, kExpertInner}, "down_proj.weight"},

    {kNamedRouter, kLayer, kWhole, {kExpertCount, kHidden}, "mlp.router.weight", Rule::kKept},
    {kNamedRouter, kLayer, kWhole, {kExpertCount}, "mlp.router.bias"},
    {kStackedExperts,
     kLayer,
     kRows,
     {kExpertCount, kHidden, kTwiceExpertInner},
     "mlp.experts.gate_up_proj",
     kStackedTransposed},
    {kStackedExperts,
     kLayer,
     kRows,
     {kExpertCount, kTwiceExpertInner},
     "mlp.experts.gate_up_proj_bias",
     Rule::kStacked | Rule::kSglangHoldsF32},
    {kStackedExperts,
     kLayer,
     kColumns,
     {kExpertCount, kExpertInner, kHidden},
     "mlp.experts.down_proj",
     kStackedTransposed},
    {kStackedExperts,
     kLayer,
     kFirstRank,
     {kExpertCount, kHidden},
     "mlp.experts.down_proj_bias",
     Rule::kStacked | Rule::kSglangHoldsF32},
    {kPackedExperts,
     kLayer,
     kRows,
     {kExpertCount, kTwiceExpertInner, kHiddenBlocks, kBlockBytes},
     "mlp.experts.gate_up_proj_blocks",
     kStackedBytes},
    {kPackedExperts,
     kLayer,
     kRows,
     {kExpertCount, kTwiceExpertInner, kHiddenBlocks},
     "mlp.experts.gate_up_proj_scales",
     kStackedBytes},
    {kPackedExperts,
     kLayer,
     kColumns,
     {kExpertCount, kHidden, kInnerBlocks, kBlockBytes},
     "mlp.experts.down_proj_blocks",
     kStackedBytes},
    {kPackedExperts,
     kLayer,
     kColumns,
     {kExpertCount, kHidden, kInnerBlocks},
     "mlp.experts.down_proj_scales",
     kStackedBytes},
    {kPackedExperts,
     kLayer,
     kRows,
     {kExpertCount, kTwiceExpertInner},
     "mlp.experts.gate_up_proj_bias",
     Rule::kStacked},
    {kPackedExperts,
     kLayer,
     kFirstRank,
     {kExpertCount, kHidden},
     "mlp.experts.down_proj_bias",
     Rule::kStacked},

    {kDecoder, kLayer, kWhole, {kHidden}, "input_layernorm.weight"},
    {kDecoder, kLayer, kWhole, {kHidden}, "post_attention_layernorm.weight"},
    {kDecoder, kAfterLayers, kWhole, {kHidden}, "norm.weight"},
    {kDecoder, kHead, kVocabulary, {kVocabularySize, kHidden}, "lm_head.weight"},

    // Conv1D stores [inputs, outputs]; c_attn's outputs are q, then k, then v.
    {Block::kGpt2, kBeforeLayers, kVocabulary, {kVocabularySize, kHidden}, "wte.weight"},
    {Block::kGpt2, kBeforeLayers, kWhole, {kPositions, kHidden}, "wpe.weight"},
    {Block::kGpt2, kLayer, kWhole, {kHidden}, "ln_1.weight"},
    {Block::kGpt2, kLayer, kWhole, {kHidden}, "ln_1.bias"},
    {Block::kGpt2,
     kLayer,
     kQueryHeads,
     {kHidden, kQueries},
     "attn.c_attn.weight",
     Rule::kTransposed,
     /*sections=*/3},
    {Block::kGpt2, kLayer, kQueryHeads, {kQueries}, "attn.c_attn.bias", Rule::kPlain, 3},
    {Block::kGpt2, kLayer, kColumns, {kQueries, kHidden}, "attn.c_proj.weight", Rule::kTransposed},
    {Block::kGpt2, kLayer, kWhole, {kHidden}, "attn.c_proj.bias"},
    {Block::kGpt2, kLayer, kWhole, {kHidden}, "ln_2.weight"},
    {Block::kGpt2, kLayer, kWhole, {kHidden}, "ln_2.bias"},
    {Block::kGpt2, kLayer, kRows, {kHidden, kInner}, "mlp.c_fc.weight", Rule::kTransposed},
    {Block::kGpt2, kLayer, kRows, {kInner}, "mlp.c_fc.bias"},
    {Block::kGpt2, kLayer, kColumns, {kInner, kHidden}, "mlp.c_proj.weight", Rule::kTransposed},
    {Block::kGpt2, kLayer, kWhole, {kHidden}, "mlp.c_proj.bias"},
    {Block::kGpt2, kAfterLayers, kWhole, {kHidden}, "ln_f.weight"},
    {Block::kGpt2, kAfterLayers, kWhole, {kHidden}, "ln_f.bias"},
    {Block::kGpt2, kHead, kVocabulary, {kVocabularySize, kHidden}, "lm_head.weight"},
};

constexpr uint8_t kVllm = 1 << static_cast<int>(Engine::kVllm);
constexpr uint8_t kSglang = 1 << static_cast<int>(Engine::kSglang);

constexpr FusingRule kFusing[] = {
    {kVllm | kSglang, kLayer, "qkv_proj", "q_proj k_proj v_proj"},
    {kVllm | kSglang, kLayer, "gate_up_proj", "gate_proj up_proj"},
    {kVllm, kLayer, "fused_qkv_a_proj", "q_a_proj kv_a_proj_with_mqa"},
    {kSglang, kLayer, "fused_qkv_a_proj_with_mqa", "q_a_proj kv_a_proj_with_mqa"},

    {kVllm, kExpert, "experts.routed_experts.w13_weight", "gate_proj.weight up_proj.weight"},
    {kVllm, kExpert, "experts.routed_experts.w2_weight", "down_proj.weight"},
    {kSglang, kExpert, "experts.w13_weight", "gate_proj.weight up_proj.weight"},
    {kSglang, kExpert, "experts.w2_weight", "down_proj.weight"},

    {kVllm, kLayer, "experts.routed_experts.w13_weight", "experts.gate_up_proj"},
    {kVllm, kLayer, "experts.routed_experts.w13_bias", "experts.gate_up_proj_bias"},
    {kVllm, kLayer, "experts.routed_experts.w2_weight", "experts.down_proj"},
    {kVllm, kLayer, "experts.routed_experts.w2_bias", "experts.down_proj_bias"},
    {kVllm, kLayer, "experts.routed_experts.w13_weight", "experts.gate_up_proj_blocks"},
    {kVllm, kLayer, "experts.routed_experts.w13_weight_scale", "experts.gate_up_proj_scales"},
    {kVllm, kLayer, "experts.routed_experts.w2_weight", "experts.down_proj_blocks"},
    {kVllm, kLayer, "experts.routed_experts.w2_weight_scale", "experts.down_proj_scales"},
    {kSglang, kLayer, "experts.w13_weight", "experts.gate_up_proj"},
    {kSglang, kLayer, "experts.w13_weight_bias", "experts.gate_up_proj_bias"},
    {kSglang, kLayer, "experts.w2_weight", "experts.down_proj"},
    {kSglang, kLayer, "experts.w2_weight_bias", "experts.down_proj_bias"},
    {kSglang, kLayer, "experts.w13_weight", "experts.gate_up_proj_blocks"},
    {kSglang, kLayer, "experts.w13_weight_scale", "experts.gate_up_proj_scales"},
    {kSglang, kLayer, "experts.w2_weight", "experts.down_proj_blocks"},
    {kSglang, kLayer, "experts.w2_weight_scale", "experts.down_proj_scales"},
};

constexpr RenamingRule kRenaming[] = {
    {Engine::kVllm, FamilyId::kGptOss, "self_attn.", "attn."},
    {Engine::kVllm, FamilyId::kGptOss, "embed_tokens.", "embedding."},
};

constexpr OrderRule kOrder[] = {
    {Engine::kSglang, Bit(FamilyId::kQwen3), "self_attn.qkv_proj", "self_attn.k_norm"},
    {Engine::kSglang, Bit(FamilyId::kQwen3), "self_attn.o_proj", "self_attn.qkv_proj"},
    {Engine::kSglang, Bit(FamilyId::kQwen3Moe), "mlp.gate.", "mlp.experts."},
    {Engine::kSglang, Bit(FamilyId::kDeepseekV3), "self_attn.kv_a_proj_with_mqa",
     "self_attn.q_proj"},
    {Engine::kSglang, Bit(FamilyId::kDeepseekV3), "self_attn.kv_a_layernorm", "self_attn.o_proj"},
    {Engine::kSglang, Bit(FamilyId::kDeepseekV3) | Bit(FamilyId::kGlm4Moe), "mlp.shared_experts.",
     "mlp.experts."},
    {Engine::kSglang, Bit(FamilyId::kGptOss), "mlp.router.", "mlp.experts."},
    {Engine::kSglang, Bit(FamilyId::kGptOss), "mlp.experts.w2_weight", "mlp.experts.w13_"},
};

constexpr ConfigKeys kDecoderKeys{.hidden = "hidden_size",
                                  .inner = "intermediate_size",
                                  .layers = "num_hidden_layers",
                                  .heads = "num_attention_heads",
                                  .kv_heads = "num_key_value_heads",
                                  .head_dim = "head_dim"};
constexpr ConfigKeys kGpt2Keys{.hidden = "n_embd",
                               .inner = "n_inner",
                               .layers = "n_layer",
                               .heads = "n_head",
                               .positions = "n_positions",
                               .tied_by_default = true};

constexpr uint32_t kDense = Bit(kDecoder) | Bit(kGqa) | Bit(kQkvBias) | Bit(kOtherBias) |
                            Bit(kDenseMlp) | Bit(kDenseMlpBias);

constexpr Family kFamilies[] = {
    {FamilyId::kLlama, "llama", "LlamaForCausalLM", kDense | Bit(kCacheScales), &kDecoderKeys},
    {FamilyId::kQwen2, "qwen2", "Qwen2ForCausalLM",
     kDense | Bit(kCacheScales) | Bit(kQkvBiasRequired), &kDecoderKeys},
    {FamilyId::kQwen3, "qwen3", "Qwen3ForCausalLM", kDense | Bit(kQkNorm), &kDecoderKeys},
    {FamilyId::kQwen3Moe, "qwen3-moe", "Qwen3MoeForCausalLM",
     kDense | Bit(kQkNorm) | Bit(kRouter) | Bit(kExperts), &kDecoderKeys},
    {FamilyId::kDeepseekV3, "deepseek-v3", "DeepseekV3ForCausalLM",
     Bit(kDecoder) | Bit(kMla) | Bit(kDenseMlp) | Bit(kRouter) | Bit(kExperts), &kDecoderKeys},
    {FamilyId::kGlm4Moe, "glm4-moe", "Glm4MoeForCausalLM",
     Bit(kDecoder) | Bit(kGqa) | Bit(kQkvBias) | Bit(kDenseMlp) | Bit(kRouterF32) |
         Bit(kRouterBias) | Bit(kExperts),
     &kDecoderKeys},
    {FamilyId::kGptOss, "gpt-oss", "GptOssForCausalLM",
     Bit(kDecoder) | Bit(kGqa) | Bit(kQkvBias) | Bit(kOtherBias) | Bit(kQkvBiasRequired) |
         Bit(kOtherBiasRequired) | Bit(kSinks) | Bit(kNamedRouter),
     &kDecoderKeys},
    {FamilyId::kGpt2, "gpt2", "GPT2LMHeadModel", Bit(Block::kGpt2), &kGpt2Keys},
};

}  // namespace

absl::string_view Name(Engine engine) { return engine == Engine::kVllm ? "vllm" : "sglang"; }

int TensorRule::dimensions() const {
  int count = 0;
  while (count < 4 && shape[static_cast<size_t>(count)] != Extent::kNone) ++count;
  return count;
}

int TensorRule::cut_axis() const {
  const int first = Is(kStacked) ? 1 : 0;
  const bool is_matrix = dimensions() - first >= 2;
  const bool second = is_matrix && (cut == Cut::kColumns) != Is(kTransposed);
  return first + (second ? 1 : 0);
}

absl::Span<const TensorRule> TensorRules() { return kRules; }
absl::Span<const FusingRule> FusingRules() { return kFusing; }
absl::Span<const RenamingRule> RenamingRules() { return kRenaming; }
absl::Span<const OrderRule> OrderRules() { return kOrder; }
absl::Span<const Family> Families() { return kFamilies; }

bool Family::Ignores(absl::string_view tensor) const {
  if (id != FamilyId::kGpt2) return absl::EndsWith(tensor, ".rotary_emb.inv_freq");
  return absl::EndsWith(tensor, ".attn.bias") || absl::EndsWith(tensor, ".attn.masked_bias");
}

const Family* FamilyOfArchitecture(absl::string_view architecture) {
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return &family;
  }
  return nullptr;
}

}  // namespace waybill
