// SPDX-License-Identifier: Apache-2.0

#include "core/layout/model_config.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

std::string Llama(absl::string_view more) {
  return absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
      "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
      "vocab_size": 100)",
                      more, "}");
}

TEST(ModelConfig, DerivesWhatIsLeftOut) {
  const auto config = ParseModelConfig(Llama(R"(, "head_dim": null)"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family_name(), "llama");
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_EQ(config->extent(Extent::kHeadDim), 8);
  EXPECT_FALSE(config->tied_head);
  const auto gpt2 = ParseModelConfig(
      R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12,
          "n_positions": 1024, "n_inner": null, "vocab_size": 50257})");
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->extent(Extent::kInner), 3072);
  EXPECT_EQ(gpt2->extent(Extent::kPositions), 1024);
  EXPECT_TRUE(gpt2->tied_head);
}

TEST(ModelConfig, KnowsItsFamilies) {
  for (const Family& family : Families()) {
    EXPECT_EQ(FamilyOfArchitecture(family.architecture), &family);
  }
}

TEST(ModelConfig, WhatItDoesNotKnowIsGenericAndSaysWhatItKnows) {
  const auto other = ParseModelConfig(R"({"architectures": ["MixtralForCausalLM"]})");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->family, nullptr);
  EXPECT_EQ(other->family_name(), "generic");
  EXPECT_EQ(other->generic_reason,
            "architecture \"MixtralForCausalLM\" is not one of LlamaForCausalLM, Qwen2ForCausalLM, "
            "Qwen3ForCausalLM, Qwen3MoeForCausalLM, DeepseekV3ForCausalLM, Glm4MoeForCausalLM, "
            "GptOssForCausalLM, GPT2LMHeadModel");
  EXPECT_EQ(ParseModelConfig("{}")->generic_reason, "config.json names no one architecture");
}

std::string Qwen3Moe(absl::string_view more) {
  return absl::StrCat(R"({"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64,
      "intermediate_size": 128, "moe_intermediate_size": 32, "num_experts": 8,
      "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 100)",
                      more, "}");
}

std::string DeepseekV3(absl::string_view more) {
  return absl::StrCat(R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 60,
      "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8,
      "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 100, "kv_lora_rank": 16,
      "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10)",
                      more, "}");
}

std::string SparseLayers(const std::string& json) {
  const auto config = ParseModelConfig(json);
  EXPECT_TRUE(config.ok()) << config.status();
  std::string layers;
  for (int64_t layer = 0; layer < config->layers; ++layer) {
    layers += config->IsSparse(layer) ? 'E' : '-';
  }
  return layers;
}

TEST(ModelConfig, SaysWhichLayersHaveExperts) {
  EXPECT_EQ(SparseLayers(Llama("")), "--");
  EXPECT_EQ(SparseLayers(Qwen3Moe("")), "EEEEEE");
  EXPECT_EQ(SparseLayers(Qwen3Moe(R"(, "decoder_sparse_step": 2)")), "-E-E-E");
  EXPECT_EQ(SparseLayers(Qwen3Moe(R"(, "mlp_only_layers": [4, 0])")), "-EEE-E");
  EXPECT_EQ(SparseLayers(DeepseekV3(R"(, "first_k_dense_replace": 2)")), "--EEEE");
  EXPECT_EQ(SparseLayers(DeepseekV3(R"(, "first_k_dense_replace": 1, "moe_layer_freq": 2)")),
            "--E-E-");
}

TEST(ModelConfig, LatentAttentionHasLatentExtents) {
  const auto config = ParseModelConfig(DeepseekV3(R"(, "q_lora_rank": 24)"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->extent(Extent::kQueryLatent), 24);
  EXPECT_EQ(config->extent(Extent::kLatentAndRope), 20);
  EXPECT_EQ(config->extent(Extent::kLatentQueries), 128);
  EXPECT_EQ(config->extent(Extent::kLatentKeys), 176);
  EXPECT_EQ(config->extent(Extent::kLatentValues), 80);
  EXPECT_TRUE(config->has(Block::kMlaLatentQuery));
  EXPECT_FALSE(config->has(Block::kSharedExperts));
  EXPECT_TRUE(ParseModelConfig(DeepseekV3(R"(, "q_lora_rank": null)"))->has(Block::kMlaPlainQuery));
}

std::string Nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

TEST(ModelConfig, DeepBracketsAreRefusedBeforeAnythingWalksThem) {
  for (const absl::string_view key : {"head_dim", "tie_word_embeddings", "quantization_config"}) {
    const auto config = ParseModelConfig(Llama(absl::StrCat(", \"", key, "\": ", Nested(200000))));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(config.status().message(), "config.json: brackets are nested more than 64 deep");
  }
  EXPECT_TRUE(ParseModelConfig(Llama(absl::StrCat(R"(, "other": )", Nested(63)))).ok());
  EXPECT_FALSE(ParseModelConfig(Llama(absl::StrCat(R"(, "other": )", Nested(64)))).ok());
}

TEST(ModelConfig, ErrorsNameContainersAndCutLongTexts) {
  const auto of_quantisation = [](absl::string_view more) {
    const auto config = ParseModelConfig(
        Llama(absl::StrCat(R"(, "quantization_config": {"quant_method": "fp8", )", more, "}")));
    return config.ok() ? config->quantisation_problem : config.status().ToString();
  };
  EXPECT_EQ(of_quantisation(R"("fmt": [[["e4m3"]]])"),
            "has fmt a list, known is \"e4m3\", \"float8_e4m3fn\"");
  EXPECT_EQ(of_quantisation(R"("weight_block_size": {"a": 1})"),
            "has weight_block_size an object, which is not two whole numbers");
  EXPECT_EQ(of_quantisation(R"("ignored_layers": [["a"]])"),
            "has ignored_layers with a list, which is no module's name");
  const auto long_text =
      ParseModelConfig(Llama(absl::StrCat(R"(, "head_dim": ")", std::string(100000, 'x'), "\"")));
  EXPECT_LT(long_text.status().message().size(), 200u);
}

struct BadCase {
  const char* name;
  std::string json;
  const char* message;
};

class ModelConfigRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(ModelConfigRefusesTest, AndNamesTheKey) {
  const auto config = ParseModelConfig(GetParam().json);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(config.status().message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ModelConfigRefusesTest,
    testing::Values(
        BadCase{"not_json", "{", "config.json: not JSON"},
        BadCase{"an_array", "[]", "config.json: not a JSON object"},
        BadCase{"a_missing_number", R"({"architectures": ["LlamaForCausalLM"]})",
                "config.json: \"hidden_size\" is missing"},
        BadCase{"a_negative_number", Llama(R"(, "head_dim": -1)"),
                "config.json: \"head_dim\" is -1, allowed are whole numbers from 1 to 536870912"},
        BadCase{"a_text", Llama(R"(, "head_dim": "8")"),
                "config.json: \"head_dim\" is \"8\", allowed are whole numbers from 1 to "
                "536870912"},
        BadCase{"a_huge_number", Llama(R"(, "num_key_value_heads": 18446744073709551615)"),
                "config.json: \"num_key_value_heads\" is 18446744073709551615, allowed are whole "
                "numbers from 1 to 536870912"},
        BadCase{"heads_that_do_not_divide", Llama(R"(, "num_attention_heads": 7)"),
                "config.json: \"head_dim\" is missing"},
        BadCase{"no_experts", R"({"architectures": ["GptOssForCausalLM"], "hidden_size": 64,
                "num_hidden_layers": 1, "num_attention_heads": 8, "vocab_size": 8})",
                "config.json: \"num_local_experts\" is missing"},
        BadCase{"a_layer_that_is_no_number", Qwen3Moe(R"(, "mlp_only_layers": [-1])"),
                "config.json: \"mlp_only_layers\" has -1, which is no layer's number"},
        BadCase{"a_missing_latent", R"({"architectures": ["DeepseekV3ForCausalLM"],
                "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8,
                "vocab_size": 8})",
                "config.json: \"kv_lora_rank\" is missing"},
        BadCase{"a_flag_that_is_none", Llama(R"(, "tie_word_embeddings": 1)"),
                "config.json: \"tie_word_embeddings\" is 1, not true or false"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
