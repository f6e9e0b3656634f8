#include "core/layout/families.h"

#include <initializer_list>

namespace waybill {
namespace {

enum class QkNorm : uint8_t { kNo, kYes };

ParameterRule Vector(Where where, absl::string_view name, Extent extent = Extent::kHidden) {
  return {where, name, {{.tensor = name, .rows = extent}}};
}

// Rules that are there for the bias of what is there for the weight: no columns, and what is cut by
// inputs has its bias whole.
ParameterRule BiasOf(const ParameterRule& weight, absl::string_view parameter,
                     std::initializer_list<absl::string_view> tensors, Need need) {
  ParameterRule bias{weight.where, parameter, weight.parts, need};
  auto tensor = tensors.begin();
  for (PartRule& part : bias.parts) {
    part.tensor = *tensor;
    if (tensors.size() > 1) ++tensor;
    part.columns = Extent::kNone;
    if (part.cut == Cut::kColumns) part.cut = Cut::kWhole;
  }
  return bias;
}

// Llama and what is built like it.
std::vector<ParameterRule> DecoderRules(Need qkv_bias, QkNorm qk_norm) {
  const ParameterRule qkv{
      .parameter = "self_attn.qkv_proj.weight",
      .parts = {
          {"self_attn.q_proj.weight", Cut::kQueryHeads, Extent::kQueries, Extent::kHidden},
          {"self_attn.k_proj.weight", Cut::kKvHeads, Extent::kKeys, Extent::kHidden},
          {"self_attn.v_proj.weight", Cut::kKvHeads, Extent::kKeys, Extent::kHidden},
      }};
  const ParameterRule o{
      .parameter = "self_attn.o_proj.weight",
      .parts = {{"self_attn.o_proj.weight", Cut::kColumns, Extent::kHidden, Extent::kQueries}}};
  const ParameterRule gate_up{
      .parameter = "mlp.gate_up_proj.weight",
      .parts = {{"mlp.gate_proj.weight", Cut::kRows, Extent::kInner, Extent::kHidden},
                {"mlp.up_proj.weight", Cut::kRows, Extent::kInner, Extent::kHidden}}};
  const ParameterRule down{
      .parameter = "mlp.down_proj.weight",
      .parts = {{"mlp.down_proj.weight", Cut::kColumns, Extent::kHidden, Extent::kInner}}};

  std::vector<ParameterRule> rules = {
      {Where::kBeforeLayers,
       "embed_tokens.weight",
       {{"embed_tokens.weight", Cut::kVocabulary, Extent::kVocabulary, Extent::kHidden}}},
      qkv,
      BiasOf(qkv, "self_attn.qkv_proj.bias",
             {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}, qkv_bias),
      o,
      BiasOf(o, "self_attn.o_proj.bias", {"self_attn.o_proj.bias"}, Need::kWhenStored),
  };
  if (qk_norm == QkNorm::kYes) {
    rules.push_back(Vector(Where::kLayer, "self_attn.q_norm.weight", Extent::kHeadDim));
    rules.push_back(Vector(Where::kLayer, "self_attn.k_norm.weight", Extent::kHeadDim));
  }
  rules.insert(rules.end(),
               {gate_up,
                BiasOf(gate_up, "mlp.gate_up_proj.bias", {"mlp.gate_proj.bias", "mlp.up_proj.bias"},
                       Need::kWhenStored),
                down,
                BiasOf(down, "mlp.down_proj.bias", {"mlp.down_proj.bias"}, Need::kWhenStored),
                Vector(Where::kLayer, "input_layernorm.weight"),
                Vector(Where::kLayer, "post_attention_layernorm.weight"),
                Vector(Where::kAfterLayers, "norm.weight"),
                {Where::kHead,
                 kHeadName,
                 {{kHeadName, Cut::kVocabulary, Extent::kVocabulary, Extent::kHidden}}}});
  return rules;
}

// Conv1D stores [inputs, outputs]; c_attn's outputs are q, then k, then v.
std::vector<ParameterRule> Gpt2Rules() {
  const auto weight = [](absl::string_view name, std::vector<PartRule> parts) {
    for (PartRule& part : parts) part.tensor = name;
    return ParameterRule{.parameter = name, .parts = std::move(parts), .stored_transposed = true};
  };
  const auto bias = [](const ParameterRule& of, absl::string_view name) {
    return BiasOf(of, name, {name}, Need::kRequired);
  };
  const auto attention = [](int section) {
    return PartRule{"",      Cut::kQueryHeads, Extent::kQueries, Extent::kHidden,
                    section, /*sections=*/3};
  };
  const ParameterRule c_attn =
      weight("attn.c_attn.weight", {attention(0), attention(1), attention(2)});
  const ParameterRule attn_c_proj =
      weight("attn.c_proj.weight", {{"", Cut::kColumns, Extent::kHidden, Extent::kQueries}});
  const ParameterRule c_fc =
      weight("mlp.c_fc.weight", {{"", Cut::kRows, Extent::kInner, Extent::kHidden}});
  const ParameterRule mlp_c_proj =
      weight("mlp.c_proj.weight", {{"", Cut::kColumns, Extent::kHidden, Extent::kInner}});
  return {
      {Where::kBeforeLayers,
       "wte.weight",
       {{"wte.weight", Cut::kVocabulary, Extent::kVocabulary, Extent::kHidden}}},
      {Where::kBeforeLayers,
       "wpe.weight",
       {{"wpe.weight", Cut::kWhole, Extent::kPositions, Extent::kHidden}}},
      Vector(Where::kLayer, "ln_1.weight"),
      Vector(Where::kLayer, "ln_1.bias"),
      c_attn,
      bias(c_attn, "attn.c_attn.bias"),
      attn_c_proj,
      bias(attn_c_proj, "attn.c_proj.bias"),
      Vector(Where::kLayer, "ln_2.weight"),
      Vector(Where::kLayer, "ln_2.bias"),
      c_fc,
      bias(c_fc, "mlp.c_fc.bias"),
      mlp_c_proj,
      bias(mlp_c_proj, "mlp.c_proj.bias"),
      Vector(Where::kAfterLayers, "ln_f.weight"),
      Vector(Where::kAfterLayers, "ln_f.bias"),
      {Where::kHead,
       kHeadName,
       {{kHeadName, Cut::kVocabulary, Extent::kVocabulary, Extent::kHidden}}},
  };
}

std::vector<Family> MakeFamilies() {
  const ConfigKeys decoder_keys{.hidden = "hidden_size",
                                .inner = "intermediate_size",
                                .layers = "num_hidden_layers",
                                .heads = "num_attention_heads",
                                .kv_heads = "num_key_value_heads",
                                .head_dim = "head_dim"};
  const auto decoder = [&](absl::string_view name, absl::string_view architecture, Need qkv_bias,
                           QkNorm qk_norm) {
    return Family{.name = name,
                  .architectures = {architecture},
                  .keys = decoder_keys,
                  .prefix = "model.",
                  .layer_infix = "layers.",
                  .embedding = "embed_tokens.weight",
                  .rules = DecoderRules(qkv_bias, qk_norm),
                  .ignored = {".rotary_emb.inv_freq"}};
  };
  return {
      decoder("llama", "LlamaForCausalLM", Need::kWhenStored, QkNorm::kNo),
      decoder("qwen2", "Qwen2ForCausalLM", Need::kRequired, QkNorm::kNo),
      decoder("qwen3", "Qwen3ForCausalLM", Need::kWhenStored, QkNorm::kYes),
      Family{.name = "gpt2",
             .architectures = {"GPT2LMHeadModel"},
             .keys = {.hidden = "n_embd",
                      .inner = "n_inner",
                      .layers = "n_layer",
                      .heads = "n_head",
                      .positions = "n_positions",
                      .tied_by_default = true},
             .prefix = "transformer.",
             .layer_infix = "h.",
             .embedding = "wte.weight",
             .rules = Gpt2Rules(),
             .ignored = {".attn.bias", ".attn.masked_bias"}},
  };
}

}  // namespace

const std::vector<Family>& Families() {
  static const auto& families = *new std::vector<Family>(MakeFamilies());
  return families;
}

const Family* FamilyOfArchitecture(absl::string_view architecture) {
  for (const Family& family : Families()) {
    for (const absl::string_view name : family.architectures) {
      if (name == architecture) return &family;
    }
  }
  return nullptr;
}

}  // namespace waybill
