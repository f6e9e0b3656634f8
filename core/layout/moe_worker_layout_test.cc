// SPDX-License-Identifier: Apache-2.0

// What workers of MoE models hold where no recorded load of an engine says it: by definition.
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/layout/held_elements.h"
#include "core/layout/worker_layout.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

std::string GptOss(absl::string_view more) {
  return absl::StrCat(R"({"architectures": ["GptOssForCausalLM"], "hidden_size": 64,
      "intermediate_size": 128, "num_local_experts": 4, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64)",
                      more, "}");
}

WorkerLayout Layout(const TestModel& model, absl::string_view sharding, uint32_t rank,
                    absl::string_view format = "") {
  const auto workers = WorkerSharding::Parse(sharding);
  EXPECT_TRUE(workers.ok()) << workers.status();
  const auto serving = ParseServing(format, "", model.config);
  EXPECT_TRUE(serving.ok()) << serving.status();
  auto layout = MakeWorkerLayout(model.tensors, model.config, *workers, rank, *serving);
  EXPECT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(CheckManifest(layout->manifest, Holes::kRefused).message(), "");
  return *std::move(layout);
}

std::vector<std::string> NamesAndShapes(const WorkerLayout& layout) {
  std::vector<std::string> lines;
  for (const Parameter& p : layout.parameters) {
    lines.push_back(absl::StrCat(p.name, " ", Name(p.format.dtype), " ", ShapeToString(p.shape)));
  }
  return lines;
}

using Strings = std::vector<std::string>;

// The tensor and element that fill each element of a parameter; "" where none does.
std::vector<std::pair<std::string, int64_t>> SourcesOf(const WorkerLayout& layout,
                                                       const Parameter& parameter) {
  const uint64_t bytes = ElementBytes(parameter.format);
  std::vector<std::pair<std::string, int64_t>> sources(
      static_cast<size_t>(Box::Whole(parameter.shape).element_count()));
  ForEachElement(layout.manifest, [&](uint32_t tensor, int64_t element, uint64_t offset_bytes) {
    if (offset_bytes < parameter.offset_bytes) return;
    const uint64_t at = (offset_bytes - parameter.offset_bytes) / bytes;
    if (at < sources.size()) {
      sources[at] = {std::string(layout.manifest.tensor_name(tensor)), element};
    }
  });
  return sources;
}

constexpr int64_t kHidden = 64, kInner = 128;
constexpr char kGptOssExperts[] = "model.layers.0.mlp.experts.";

// gpt-oss stores [expert, input, output], with gate and up by turns; engines hold them transposed.
TEST(GptOssWorker, StackedExpertsAreCutByOutputsAndTransposed) {
  const WorkerLayout layout = Layout(MakeModel(GptOss("")), "tp=2", 1);
  const Parameter& w13 =
      FindParameter(layout, "model.layers.0.mlp.experts.routed_experts.w13_weight");
  EXPECT_EQ(w13.shape, (std::vector<int64_t>{4, kInner, kHidden}));
  const auto up = SourcesOf(layout, w13);
  for (int64_t e = 0, at = 0; e < 4; ++e) {
    for (int64_t row = 0; row < kInner; ++row) {  // Half of the 2 * kInner outputs.
      for (int64_t column = 0; column < kHidden; ++column, ++at) {
        ASSERT_EQ(up[static_cast<size_t>(at)],
                  std::pair(absl::StrCat(kGptOssExperts, "gate_up_proj"),
                            (e * kHidden + column) * 2 * kInner + kInner + row));
      }
    }
  }
  const Parameter& w2 =
      FindParameter(layout, "model.layers.0.mlp.experts.routed_experts.w2_weight");
  EXPECT_EQ(w2.shape, (std::vector<int64_t>{4, kHidden, kInner / 2}));
  const auto down = SourcesOf(layout, w2);
  for (int64_t e = 0, at = 0; e < 4; ++e) {
    for (int64_t row = 0; row < kHidden; ++row) {
      for (int64_t column = 0; column < kInner / 2; ++column, ++at) {
        ASSERT_EQ(down[static_cast<size_t>(at)],
                  std::pair(absl::StrCat(kGptOssExperts, "down_proj"),
                            (e * kInner + kInner / 2 + column) * kHidden + row));
      }
    }
  }
}

// The ranks' outputs are added up, so the bias is added once.
TEST(GptOssWorker, OnlyTheFirstRankHasTheBiasOfWhatIsAddedUp) {
  const TestModel model = MakeModel(GptOss(""));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const WorkerLayout layout = Layout(model, "tp=2", rank);
    const Parameter& bias =
        FindParameter(layout, "model.layers.0.mlp.experts.routed_experts.w2_bias");
    EXPECT_EQ(bias.shape, (std::vector<int64_t>{4, kHidden}));
    const auto sources = SourcesOf(layout, bias);
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(sources[i], rank > 0 ? std::pair(std::string(), int64_t{0})
                                     : std::pair(absl::StrCat(kGptOssExperts, "down_proj_bias"),
                                                 static_cast<int64_t>(i)));
    }
  }
  const WorkerLayout whole = Layout(model, "tp=2,ep=2", 1);
  const Parameter& bias = FindParameter(whole, "model.layers.0.mlp.experts.routed_experts.w2_bias");
  EXPECT_EQ(SourcesOf(whole, bias)[0],
            std::pair(absl::StrCat(kGptOssExperts, "down_proj_bias"), 2 * kHidden));
}

// The blocks of MXFP4 are bytes that move as they are: rows of 16 bytes for 32 elements.
TEST(GptOssWorker, PackedExpertsMoveAsBytes) {
  const TestModel model =
      MakeModel(GptOss(R"(, "quantization_config": {"quant_method": "mxfp4"})"));
  const WorkerLayout layout = Layout(model, "tp=2", 1);
  EXPECT_EQ(NamesAndShapes(layout),
            (Strings{"model.embedding.weight BF16 [32, 64]", "model.layers.0.attn.sinks BF16 [2]",
                     "model.layers.0.attn.qkv_proj.weight BF16 [32, 64]",
                     "model.layers.0.attn.qkv_proj.bias BF16 [32]",
                     "model.layers.0.attn.o_proj.weight BF16 [64, 16]",
                     "model.layers.0.attn.o_proj.bias BF16 [64]",
                     "model.layers.0.mlp.router.weight BF16 [4, 64]",
                     "model.layers.0.mlp.router.bias BF16 [4]",
                     "model.layers.0.mlp.experts.routed_experts.w13_weight U8 [4, 128, 32]",
                     "model.layers.0.mlp.experts.routed_experts.w13_weight_scale U8 [4, 128, 2]",
                     "model.layers.0.mlp.experts.routed_experts.w2_weight U8 [4, 64, 32]",
                     "model.layers.0.mlp.experts.routed_experts.w2_weight_scale U8 [4, 64, 2]",
                     "model.layers.0.mlp.experts.routed_experts.w13_bias BF16 [4, 128]",
                     "model.layers.0.mlp.experts.routed_experts.w2_bias BF16 [4, 64]",
                     "model.layers.0.input_layernorm.weight BF16 [64]",
                     "model.layers.0.post_attention_layernorm.weight BF16 [64]",
                     "model.norm.weight BF16 [64]", "lm_head.weight BF16 [32, 64]"}));
  const auto down = SourcesOf(
      layout, FindParameter(layout, "model.layers.0.mlp.experts.routed_experts.w2_weight"));
  for (int64_t row = 0, at = 0; row < 4 * kHidden; ++row) {
    for (int64_t byte = 0; byte < 32; ++byte, ++at) {  // The second half of each row's 64.
      ASSERT_EQ(down[static_cast<size_t>(at)],
                std::pair(absl::StrCat(kGptOssExperts, "down_proj_blocks"), row * 64 + 32 + byte));
    }
  }
}

struct Mxfp4Case {
  const char* name;
  const char* sharding;
  std::vector<int64_t> w13;
  std::vector<int64_t> w2;
};

class Mxfp4SizesTest : public testing::TestWithParam<Mxfp4Case> {};

// gpt-oss-120b: 128 experts of 2880 by 2880 elements, 90 blocks.
TEST_P(Mxfp4SizesTest, AreRoundedForTheKernel) {
  const WorkerLayout layout = Layout(MakeNamedModel("gpt-oss-120b", 1), GetParam().sharding, 1);
  EXPECT_EQ(FindParameter(layout, "model.layers.0.mlp.experts.routed_experts.w13_weight").shape,
            GetParam().w13);
  EXPECT_EQ(FindParameter(layout, "model.layers.0.mlp.experts.routed_experts.w2_weight").shape,
            GetParam().w2);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Mxfp4SizesTest,
    testing::Values(
        Mxfp4Case{"whole_experts", "tp=2,ep=2", {64, 2 * 2880, 1440}, {64, 2880, 1440}},
        // 23 blocks are 736 elements.
        Mxfp4Case{"to_multiples_of_64", "tp=4", {128, 2 * 768, 1440}, {128, 2880, 384}},
        Mxfp4Case{"to_whole_blocks", "tp=4,mxfp4=cpu", {128, 2 * 736, 1440}, {128, 2880, 368}},
        Mxfp4Case{
            "to_multiples_of_128", "tp=4,mxfp4=cutlass", {128, 2 * 768, 1472}, {128, 2944, 384}},
        Mxfp4Case{"to_multiples_of_128_and_256",
                  "tp=2,ep=2,mxfp4=trtllm",
                  {64, 2 * 2944, 1536},
                  {64, 3072, 1472}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(GlmWorker, RoutersAreF32AndSharedExpertsComeBeforeTheOthersInVllm) {
  const TestModel model = MakeNamedModel("glm-4.5", 4);
  const WorkerLayout layout = Layout(model, "tp=8,ep=8", 3);
  Strings sparse;
  for (const std::string& line : NamesAndShapes(layout)) {
    if (absl::StartsWith(line, "model.layers.3.")) sparse.push_back(line.substr(15));
  }
  EXPECT_EQ(
      sparse,
      (Strings{"self_attn.qkv_proj.weight BF16 [1792, 5120]", "self_attn.qkv_proj.bias BF16 [1792]",
               "self_attn.o_proj.weight BF16 [5120, 1536]", "self_attn.q_norm.weight BF16 [128]",
               "self_attn.k_norm.weight BF16 [128]", "mlp.gate.weight F32 [160, 5120]",
               "mlp.gate.e_score_correction_bias F32 [160]",
               "mlp.shared_experts.gate_up_proj.weight BF16 [384, 5120]",
               "mlp.shared_experts.down_proj.weight BF16 [5120, 192]",
               "mlp.experts.routed_experts.w13_weight BF16 [20, 3072, 5120]",
               "mlp.experts.routed_experts.w2_weight BF16 [20, 5120, 1536]",
               "input_layernorm.weight BF16 [5120]",
               "post_attention_layernorm.weight BF16 [5120]"}));
}

// Kimi-K2 on 128 ranks: each has the attention, and three experts of a layer.
TEST(ReplicatedAttention, IsWholeOnEachRankAndExpertsAreDealtOut) {
  const TestModel model = MakeNamedModel("kimi-k2", 2);
  const WorkerLayout layout = Layout(model, "dp=128,ep=128", 100, "bf16");
  EXPECT_EQ(FindParameter(layout, "model.layers.1.self_attn.q_b_proj.weight").shape,
            (std::vector<int64_t>{64 * 192, 1536}));
  EXPECT_EQ(FindParameter(layout, "model.layers.1.mlp.shared_experts.gate_up_proj.weight").shape,
            (std::vector<int64_t>{4096, 7168}));
  EXPECT_EQ(FindParameter(layout, "model.layers.1.mlp.experts.routed_experts.w13_weight").shape,
            (std::vector<int64_t>{3, 4096, 7168}));
  std::map<std::string, int> experts;
  for (uint32_t i = 0; i < layout.manifest.tensor_count(); ++i) {
    const absl::string_view name = layout.manifest.tensor_name(i);
    if (absl::StrContains(name, ".experts.")) ++experts[std::string(name.substr(0, 32))];
  }
  EXPECT_EQ(experts, (std::map<std::string, int>{{"model.layers.1.mlp.experts.300.g", 1},
                                                 {"model.layers.1.mlp.experts.300.u", 1},
                                                 {"model.layers.1.mlp.experts.300.d", 1},
                                                 {"model.layers.1.mlp.experts.301.g", 1},
                                                 {"model.layers.1.mlp.experts.301.u", 1},
                                                 {"model.layers.1.mlp.experts.301.d", 1},
                                                 {"model.layers.1.mlp.experts.302.g", 1},
                                                 {"model.layers.1.mlp.experts.302.u", 1},
                                                 {"model.layers.1.mlp.experts.302.d", 1}}));
}

TEST(WorkerReplicas, HaveEqualLayouts) {
  const TestModel model = MakeNamedModel("tiny-deepseek-v3", 3);
  for (const char* text : {"tp=2,dp=2,ep=4,replicas=2", "tp=4,ep=2,engine=sglang,replicas=2"}) {
    const WorkerSharding sharding = *WorkerSharding::Parse(text);
    for (uint32_t rank = 0; rank < sharding.world(); ++rank) {
      EXPECT_EQ(sharding.FirstLike(rank, true), rank % 4);
      EXPECT_EQ(Layout(model, text, rank).manifest, Layout(model, text, rank % 4).manifest);
    }
  }
}

TEST(GptOssWorker, StackedExpertsAreNotQuantisedOnTheWay) {
  const TestModel model = MakeModel(GptOss(""));
  const auto layout = MakeWorkerLayout(model.tensors, model.config, {}, 0,
                                       *ParseServing("fp8-row", "", model.config));
  EXPECT_EQ(layout.status().message(),
            "parameter \"model.layers.0.mlp.experts.routed_experts.w13_weight\" is stored "
            "transposed, which is not quantised on the way");
}

TEST(Qwen3MoeWorker, OfSglangHasExpertsInEveryLayerOrIsRefused) {
  const TestModel model = MakeModel(R"({"architectures": ["Qwen3MoeForCausalLM"],
      "hidden_size": 16, "intermediate_size": 32, "moe_intermediate_size": 8, "num_experts": 4,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
      "vocab_size": 32, "tie_word_embeddings": false, "mlp_only_layers": [1]})");
  EXPECT_TRUE(MakeWorkerLayout(model.tensors, model.config, {}, 0).ok());
  EXPECT_EQ(MakeWorkerLayout(model.tensors, model.config, {.engine = Engine::kSglang}, 0)
                .status()
                .message(),
            "layer 1 of the model has no experts (\"mlp_only_layers\", \"decoder_sparse_step\"); "
            "sglang gives every layer of family qwen3-moe experts; vllm does not");
}

struct BadCase {
  const char* name;
  const char* model;
  const char* sharding;
  const char* format;
  const char* message;
};

class MoeWorkerRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(MoeWorkerRefusesTest, NamingBothNumbersAndWhatWouldDo) {
  const BadCase& c = GetParam();
  const TestModel model = MakeNamedModel(c.model, 1);
  const auto sharding = WorkerSharding::Parse(c.sharding);
  ASSERT_TRUE(sharding.ok()) << sharding.status();
  const auto serving = ParseServing(c.format, "", model.config);
  ASSERT_TRUE(serving.ok()) << serving.status();
  const auto layout = MakeWorkerLayout(model.tensors, model.config, *sharding, 0, *serving);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(layout.status().message(), c.message);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MoeWorkerRefusesTest,
    testing::Values(
        BadCase{"experts_that_ep_does_not_divide", "qwen3-30b-a3b", "dp=3,ep=3", "",
                "ep=3 does not divide the model's 128 experts; ep may be 1, 2, 4, 8, 16, 32, 64 or "
                "128, or with experts=uneven any number up to 128"},
        BadCase{"a_kernel_without_experts_in_mxfp4", "qwen3-30b-a3b", "mxfp4=trtllm", "",
                "mxfp4=trtllm: the model has no experts in MXFP4"},
        BadCase{"experts_of_a_dense_model", "qwen3-0.6b", "tp=2,ep=2", "",
                "ep=2: a model of family qwen3 has no experts"},
        BadCase{"heads_that_tp_does_not_divide", "qwen3-30b-a3b", "tp=64", "",
                "tensor \"model.layers.0.self_attn.q_proj.weight\": its 32 heads do not divide by "
                "tp=64; tp may be 1, 2, 4, 8, 16 or 32"},
        BadCase{"rows_of_experts_that_the_engine_does_not_divide", "qwen3-30b-a3b", "tp=32,dp=32",
                "",
                "tensor \"model.layers.0.mlp.experts.0.gate_proj.weight\": its 768 rows do not "
                "divide by tp*dp=1024; tp*dp may be 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 or another "
                "divisor of 768"},
        BadCase{"blocks_that_sglang_does_not_cut", "qwen3-30b-a3b", "tp=4,engine=sglang",
                "fp8-block",
                "parameter \"model.layers.0.mlp.experts.w13_weight\": each of 4 ranks has 192 rows "
                "of an expert, which are not whole blocks of 128; sglang wants whole blocks"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
