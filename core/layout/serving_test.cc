// SPDX-License-Identifier: Apache-2.0

#include "core/layout/serving.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/layout/held_elements.h"
#include "core/layout/synthetic.h"
#include "core/layout/worker_layout.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

TestModel Qwen() { return MakeNamedModel("qwen3-0.6b", 2); }

absl::StatusOr<WorkerLayout> Layout(const TestModel& model, uint32_t tp, absl::string_view format,
                                    uint32_t rank = 0) {
  const auto serving = ParseServing(format, "", model.config);
  if (!serving.ok()) return serving.status();
  return MakeWorkerLayout(model.tensors, model.config, {.tp = tp}, rank, *serving);
}

// The shapes that vLLM gives the same parameters.
struct ShapeCase {
  const char* format;
  const char* name;
  std::vector<int64_t> shape;
};

const ShapeCase kShapes[] = {
    // Rank 1 of two has 1024 rows of q and 512 of k and v each, with 1024 columns.
    {"fp8-block", "model.layers.0.self_attn.qkv_proj.weight", {2048, 1024}},
    {"fp8-block", "model.layers.0.self_attn.qkv_proj.weight_scale_inv", {16, 8}},
    {"fp8-block", "model.layers.1.mlp.down_proj.weight", {1024, 1536}},
    {"fp8-block", "model.layers.1.mlp.down_proj.weight_scale_inv", {8, 12}},
    {"fp8-row", "model.layers.0.mlp.gate_up_proj.weight_scale", {3072, 1}},
    {"fp8-tensor", "model.layers.0.self_attn.qkv_proj.weight_scale", {3, 1}},
    {"mxfp8", "model.layers.0.self_attn.qkv_proj.weight_scale", {2048, 32}},
};

TEST(Serving, ParametersAndScalesHaveTheShapesThatEnginesGiveThem) {
  const TestModel model = Qwen();
  for (const ShapeCase& c : kShapes) {
    const auto layout = Layout(model, 2, c.format, 1);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(CheckManifest(layout->manifest, Holes::kRefused).message(), "");
    EXPECT_EQ(FindParameter(*layout, c.name).shape, c.shape) << c.name;
  }
}

TEST(Serving, OnlyMatricesOfLayersAreQuantised) {
  const TestModel model = Qwen();
  const auto layout = Layout(model, 1, "fp8-block");
  ASSERT_TRUE(layout.ok()) << layout.status();
  size_t quantised = 0, scales = 0;
  for (const Parameter& parameter : layout->parameters) {
    quantised += parameter.format.content == Content::kQuantised;
    scales += parameter.format.content == Content::kScales;
    const bool matrix = absl::StrContains(parameter.name, "_proj.weight");
    EXPECT_EQ(parameter.format.content != Content::kPlain, matrix) << parameter.name;
  }
  EXPECT_EQ(quantised, 2u * 4);  // qkv, o, gate_up and down of two layers.
  EXPECT_EQ(scales, quantised);
}

TEST(Serving, WhatTheConfigurationKeepsStaysAsItIs) {
  TestModel model = Qwen();
  model.config.not_quantised = {"model.layers.0.mlp.down_proj"};
  const auto layout = Layout(model, 1, "fp8-block");
  EXPECT_EQ(FindParameter(*layout, "model.layers.0.mlp.down_proj.weight").format.content,
            Content::kPlain);
  EXPECT_EQ(FindParameter(*layout, "model.layers.1.mlp.down_proj.weight").format.content,
            Content::kQuantised);
  model.config.not_quantised = {"model.layers.0.self_attn.q_proj"};
  EXPECT_EQ(Layout(model, 1, "fp8-block").status().message(),
            "parameter \"model.layers.0.self_attn.qkv_proj.weight\": config.json keeps 1 of its 3 "
            "parts unquantised, and they are fused");
}

TEST(Serving, QuantizationConfigIsTheDefaultAndANameOverridesIt) {
  const SyntheticModel synthetic = *MakeSyntheticModel("qwen3-0.6b", 1);
  const auto with = [&](const std::string& config) {
    std::string json = synthetic.config_json;
    json.insert(json.find('{') + 1, absl::StrCat("\"quantization_config\": ", config, ","));
    return *ParseModelConfig(json);
  };
  const ModelConfig block = with(
      R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
          "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]})");
  EXPECT_EQ(*ParseServing("", "", block)->quantisation, Quantisation{});
  EXPECT_EQ(block.not_quantised.size(), 2u);
  EXPECT_FALSE(ParseServing("bf16", "", block)->quantisation.has_value());
  EXPECT_EQ(ParseServing("fp8-row", "", block)->quantisation->block_rows, 1u);
  EXPECT_EQ(with(R"({"quant_method": "fp8"})").quantisation->block_rows, 0u);
  EXPECT_EQ(with(R"({"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [64, 64]})")
                .quantisation->rounding,
            ScaleRounding::kPowerOfTwoUp);

  const ModelConfig other = with(R"({"quant_method": "gptq"})");
  EXPECT_EQ(ParseServing("", "", other).status().message(),
            "config.json: quantization_config has quant_method \"gptq\", known is \"fp8\"; name a "
            "format (bf16 serves it unquantised) to go by that instead");
  EXPECT_TRUE(ParseServing("fp8-block", "", other).ok());
  EXPECT_EQ(with(R"({"quant_method": "fp8", "fmt": "float8_e4m3fn", "scale_fmt": null,
                     "activation_scheme": "dynamic", "ignored_layers": null})")
                .quantisation_problem,
            "");
  EXPECT_EQ(ParseServing("bf16", "F32", block).status().message(),
            "format bf16 and dtype F32 contradict each other");
}

// A method that packs or shuffles is no plain FP8, whatever else it has in common with it.
TEST(Serving, WhatAQuantizationConfigSaysBeyondWhatIsKnownIsRefused) {
  const struct {
    const char* config;
    const char* problem;
  } kCases[] = {
      {R"("fp8")", "is no object"},
      {R"({"fmt": "e4m3"})", "has no quant_method, known is \"fp8\""},
      {R"({"quant_method": "gptq_marlin"})", "has quant_method \"gptq_marlin\", known is \"fp8\""},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
       "has quant_method \"compressed-tensors\", known is \"fp8\""},
      {R"({"quant_method": "fp8", "fmt": "e5m2"})",
       "has fmt \"e5m2\", known is \"e4m3\", \"float8_e4m3fn\""},
      {R"({"quant_method": "fp8", "scale_fmt": "ue8m0_packed"})",
       "has scale_fmt \"ue8m0_packed\", known is \"ue8m0\""},
      {R"({"quant_method": "fp8", "activation_scheme": "static"})",
       "has activation_scheme \"static\", known is \"dynamic\""},
      {R"({"quant_method": "fp8", "pack_method": "order"})",
       "has \"pack_method\", which is not known"},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})",
       "has weight_block_size a list, which is not two whole numbers"},
      {R"({"quant_method": "fp8", "ignored_layers": ["re:.*gate.*"]})",
       "has ignored_layers with \"re:.*gate.*\", which is no module's name"},
      {R"({"quant_method": "fp8", "ignored_layers": "lm_head"})",
       "has ignored_layers that is no list"},
  };
  for (const auto& c : kCases) {
    std::string json = MakeSyntheticModel("qwen3-0.6b", 1)->config_json;
    json.insert(json.find('{') + 1, absl::StrCat("\"quantization_config\": ", c.config, ","));
    const ModelConfig config = *ParseModelConfig(json);
    EXPECT_EQ(config.quantisation_problem, c.problem);
    EXPECT_FALSE(config.quantisation.has_value()) << c.config;
    EXPECT_FALSE(ParseServing("", "", config).ok()) << c.config;
    EXPECT_TRUE(ParseServing("bf16", "", config).ok()) << c.config;
  }
}

TEST(Serving, CutsWithinBlocksAreServedWithFinerScalesAsFarAsTheyGo) {
  TestModel model = Qwen();
  // Each of 16 ranks has 192 of the 3072 rows: a block and a half.
  const auto layout = Layout(model, 16, "fp8-block");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(FindParameter(*layout, "model.layers.0.mlp.gate_up_proj.weight_scale_inv").shape,
            (std::vector<int64_t>{6, 8}));
  EXPECT_EQ(FindParameter(*layout, "model.layers.0.mlp.down_proj.weight_scale_inv").shape,
            (std::vector<int64_t>{8, 3}));
  Serving odd;
  odd.quantisation = Quantisation{.block_rows = 96, .block_columns = 96};
  EXPECT_EQ(
      MakeWorkerLayout(model.tensors, model.config, {.tp = 2}, 0, odd).status().message(),
      "parameter \"model.layers.0.self_attn.qkv_proj.weight\": with tp=2 its parts begin within "
      "blocks of 96 rows, and not at multiples of 16, down to which scales can be repeated");
}

TEST(Serving, FusedPartsBeginWhereAStoredScaleDoes) {
  const ModelConfig config = *ParseModelConfig(
      R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 80, "intermediate_size": 192,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 48, "vocab_size": 64, "tie_word_embeddings": true})");
  const TestModel model = {config, RequiredTensors(config, Dtype::kBf16)};
  const auto layout = Layout(model, 1, "fp8-block");
  ASSERT_TRUE(layout.ok()) << layout.status();
  // k begins in row 192, v in row 288: one scale for each 32 rows of 384.
  EXPECT_EQ(FindParameter(*layout, "model.layers.0.self_attn.qkv_proj.weight_scale_inv").shape,
            (std::vector<int64_t>{12, 1}));
  EXPECT_EQ(FindParameter(*layout, "model.layers.0.mlp.gate_up_proj.weight_scale_inv").shape,
            (std::vector<int64_t>{6, 1}));
  EXPECT_EQ(FindParameter(*layout, "model.layers.0.mlp.down_proj.weight_scale_inv").shape,
            (std::vector<int64_t>{1, 2}));
}

TEST(Serving, ATransposedAndAGenericModelAreRefused) {
  EXPECT_TRUE(
      absl::StrContains(Layout(MakeNamedModel("gpt2", 1), 1, "fp8-block").status().message(),
                        "is stored transposed, which is not quantised on the way"));
  const TestModel generic = {ModelConfig::Generic("no config.json"), Qwen().tensors};
  EXPECT_EQ(Layout(generic, 1, "fp8-block").status().message(),
            "quantise a generic model: which of its tensors are weights of layers is not known (no "
            "config.json)");
}

}  // namespace
}  // namespace waybill
