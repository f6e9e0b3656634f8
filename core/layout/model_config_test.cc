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
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_FALSE(config->tied_head);
  const auto gpt2 = ParseModelConfig(
      R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12,
          "n_positions": 1024, "n_inner": null, "vocab_size": 50257})");
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->inner, 3072);
  EXPECT_EQ(gpt2->positions, 1024);
  EXPECT_TRUE(gpt2->tied_head);
}

TEST(ModelConfig, KnowsItsFamilies) {
  for (const Family& family : Families()) {
    for (const absl::string_view architecture : family.architectures) {
      EXPECT_EQ(FamilyOfArchitecture(architecture), &family);
    }
  }
}

TEST(ModelConfig, WhatItDoesNotKnowIsGenericAndSaysWhy) {
  const auto moe = ParseModelConfig(R"({"architectures": ["Qwen3MoeForCausalLM"]})");
  ASSERT_TRUE(moe.ok()) << moe.status();
  EXPECT_EQ(moe->family, nullptr);
  EXPECT_EQ(moe->family_name(), "generic");
  EXPECT_EQ(moe->generic_reason,
            "architecture \"Qwen3MoeForCausalLM\" is of no family that is known");
  EXPECT_EQ(ParseModelConfig("{}")->generic_reason, "config.json names no one architecture");
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
        BadCase{"a_flag_that_is_none", Llama(R"(, "tie_word_embeddings": 1)"),
                "config.json: \"tie_word_embeddings\" is 1, not true or false"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
