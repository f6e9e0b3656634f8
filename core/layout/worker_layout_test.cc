// SPDX-License-Identifier: Apache-2.0

#include "core/layout/worker_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/layout/checkpoint.h"
#include "core/layout/held_elements.h"
#include "core/layout/load_shards.h"
#include "core/layout/numbered_checkpoint.h"
#include "core/layout/parameters.h"
#include "core/layout/safetensors_writer.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

constexpr int64_t kHidden = 8, kInner = 32, kVocabulary = 70, kPositions = 5;
constexpr char kGpt2[] =
    R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_head": 4, "n_layer": 2,
        "n_positions": 5, "vocab_size": 70})";
constexpr char kQwen2[] =
    R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 64, "tie_word_embeddings": true})";

// What a worker of GPT-2 holds, element by element, from the definition of each of its layers: the
// number of the source element within its tensor, or -1 for padding.
int64_t Gpt2Source(absl::string_view parameter, int64_t row, int64_t column, uint32_t tp,
                   uint32_t rank) {
  const auto ends_with = [&](absl::string_view end) {
    return parameter.size() >= end.size() && parameter.substr(parameter.size() - end.size()) == end;
  };
  if (ends_with("wte.weight")) {
    const int64_t token = rank * (128 / tp) + row;  // 70 padded to 128.
    return token < kVocabulary ? token * kHidden + column : -1;
  }
  if (ends_with("wpe.weight")) return row * kHidden + column;
  // The output of q, k or v that a fused row is.
  const int64_t of_rank = kHidden / tp;
  const int64_t qkv = row / of_rank * kHidden + rank * of_rank + row % of_rank;
  if (ends_with("c_attn.weight")) return column * 3 * kHidden + qkv;
  if (ends_with("c_attn.bias")) return qkv;
  if (ends_with("c_fc.weight")) return column * kInner + rank * (kInner / tp) + row;
  if (ends_with("c_fc.bias")) return rank * (kInner / tp) + row;
  if (ends_with("attn.c_proj.weight")) return (rank * of_rank + column) * kHidden + row;
  if (ends_with("mlp.c_proj.weight")) return (rank * (kInner / tp) + column) * kHidden + row;
  return row;  // Norms, and the biases of what is summed over ranks.
}

std::map<std::string, std::vector<int64_t>> Gpt2Shapes(uint32_t tp) {
  std::map<std::string, std::vector<int64_t>> shapes = {
      {"transformer.wte.weight", {128 / tp, kHidden}},
      {"transformer.wpe.weight", {kPositions, kHidden}},
      {"transformer.ln_f.weight", {kHidden}},
      {"transformer.ln_f.bias", {kHidden}},
  };
  for (const char* layer : {"transformer.h.0.", "transformer.h.1."}) {
    const std::string h = layer;
    for (const char* name : {"ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias",
                             "attn.c_proj.bias", "mlp.c_proj.bias"}) {
      shapes[h + name] = {kHidden};
    }
    shapes[h + "attn.c_attn.weight"] = {3 * kHidden / tp, kHidden};
    shapes[h + "attn.c_attn.bias"] = {3 * kHidden / tp};
    shapes[h + "attn.c_proj.weight"] = {kHidden, kHidden / tp};
    shapes[h + "mlp.c_fc.weight"] = {kInner / tp, kHidden};
    shapes[h + "mlp.c_fc.bias"] = {kInner / tp};
    shapes[h + "mlp.c_proj.weight"] = {kHidden, kInner / tp};
  }
  return shapes;
}

// With masks beside the weights, and with or without "transformer." before the names.
std::vector<CheckpointTensor> Gpt2Tensors(absl::string_view prefix) {
  std::vector<CheckpointTensor> tensors = RequiredTensors(*ParseModelConfig(kGpt2), Dtype::kF32);
  tensors.push_back(
      {.name = "transformer.h.0.attn.bias", .dtype = Dtype::kF32, .shape = {1, 1, 5, 5}});
  tensors.push_back({.name = "transformer.h.0.attn.masked_bias", .dtype = Dtype::kF32});
  for (CheckpointTensor& t : tensors) {
    t.name = absl::StrCat(prefix, t.name.substr(absl::string_view("transformer.").size()));
  }
  return tensors;
}

struct Gpt2Case {
  const char* name;
  const char* prefix;
  uint32_t tp;
};

class Gpt2WorkerTest : public testing::TestWithParam<Gpt2Case> {};

TEST_P(Gpt2WorkerTest, EveryElementIsWhereItsLayerWantsIt) {
  const Gpt2Case& c = GetParam();
  const Numbered numbered(Gpt2Tensors(c.prefix));
  const std::string directory = FreshDirectory("model");
  ASSERT_TRUE(
      WriteCheckpoint(directory, kGpt2, numbered.tensors(), 1 << 20, Durability::kCached).ok());
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (uint32_t rank = 0; rank < c.tp; ++rank) {
    const auto layout =
        MakeWorkerLayout(checkpoint->tensors(), checkpoint->config(), {.tp = c.tp}, rank);
    ASSERT_TRUE(layout.ok()) << layout.status();
    ASSERT_EQ(CheckManifest(layout->manifest, Holes::kRefused).message(), "");
    std::vector<float> memory(layout->manifest.region_bytes(0) / 4, -1);
    const absl::Status loaded =
        LoadShards(*checkpoint, layout->manifest,
                   {reinterpret_cast<std::byte*>(memory.data()), memory.size() * 4});
    ASSERT_TRUE(loaded.ok()) << loaded;

    auto shapes = Gpt2Shapes(c.tp);
    ASSERT_EQ(layout->parameters.size(), shapes.size());
    for (const Parameter& parameter : layout->parameters) {
      ASSERT_EQ(parameter.shape, shapes[parameter.name]) << parameter.name;
      const absl::string_view bare =
          absl::string_view(parameter.name).substr(absl::string_view("transformer.").size());
      const int64_t first = numbered.first(absl::StrCat(c.prefix, bare));
      const int64_t columns = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
      for (int64_t i = 0; i < parameter.shape[0] * columns; ++i) {
        const int64_t source = Gpt2Source(parameter.name, i / columns, i % columns, c.tp, rank);
        ASSERT_EQ(memory[parameter.offset_bytes / 4 + static_cast<size_t>(i)],
                  source < 0 ? -1 : static_cast<float>(first + source))
            << parameter.name << " of rank " << rank << ", element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Gpt2WorkerTest,
                         testing::Values(Gpt2Case{"whole", "transformer.", 1},
                                         Gpt2Case{"tp2", "transformer.", 2},
                                         Gpt2Case{"tp4_without_prefix", "", 4}),
                         [](const auto& info) { return std::string(info.param.name); });

absl::StatusOr<WorkerLayout> Layout(absl::string_view config_json, const WorkerSharding& sharding,
                                    uint32_t rank, std::optional<Dtype> dtype = std::nullopt,
                                    Dtype stored = Dtype::kF32) {
  const ModelConfig config = *ParseModelConfig(config_json);
  return MakeWorkerLayout(RequiredTensors(config, stored), config, sharding, rank,
                          {.dtype = dtype, .quantisation = {}});
}

TEST(WorkerLayout, FusesBiasesAsItFusesWeights) {
  const auto layout = Layout(kQwen2, {.tp = 2}, 1);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const Parameter& bias = FindParameter(*layout, "model.layers.0.self_attn.qkv_proj.bias");
  EXPECT_EQ(bias.shape, (std::vector<int64_t>{4 + 2 + 2}));
  std::vector<std::string> shards;
  for (uint32_t i = 0; i < layout->manifest.shard_count(); ++i) {
    const ShardView shard = layout->manifest.shard(i);
    const absl::string_view name = layout->manifest.tensor_name(shard.tensor_index);
    if (name.substr(name.size() - 4) == "bias") {
      shards.push_back(absl::StrCat(name, ToString(shard.box), " at ",
                                    shard.place.offset_bytes - bias.offset_bytes));
    }
  }
  EXPECT_EQ(shards, (std::vector<std::string>{"model.layers.0.self_attn.q_proj.bias[4, 8) at 0",
                                              "model.layers.0.self_attn.k_proj.bias[2, 4) at 16",
                                              "model.layers.0.self_attn.v_proj.bias[2, 4) at 24"}));
}

TEST(WorkerLayout, ReplicasHoldTheSame) {
  const auto first = Layout(kQwen2, {.tp = 2, .dp = 2}, 1);
  const auto second = Layout(kQwen2, {.tp = 2, .dp = 2}, 3);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->manifest, second->manifest);
}

TEST(WorkerLayout, ServesF32AsBf16) {
  const auto layout = Layout(kQwen2, {}, 0, Dtype::kBf16);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(CheckManifest(layout->manifest, Holes::kRefused).message(), "");
  for (const Parameter& parameter : layout->parameters) {
    EXPECT_EQ(parameter.format.dtype, Dtype::kBf16);
    EXPECT_EQ(parameter.offset_bytes % 256, 0u);
  }
  EXPECT_EQ(layout->manifest.tensor_dtype(0), Dtype::kF32);
}

// Numbers up to 256 are exact in BF16.
TEST(WorkerLayout, RoundsAndTransposesWhatItLoads) {
  const Numbered numbered(Gpt2Tensors("transformer."), -100);
  const std::string directory = FreshDirectory("model");
  ASSERT_TRUE(
      WriteCheckpoint(directory, kGpt2, numbered.tensors(), 1 << 20, Durability::kCached).ok());
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto layout = MakeWorkerLayout(checkpoint->tensors(), checkpoint->config(), {.tp = 2}, 1,
                                       {.dtype = Dtype::kBf16, .quantisation = {}});
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::vector<std::byte> memory(layout->manifest.region_bytes(0));
  ASSERT_TRUE(LoadShards(*checkpoint, layout->manifest, absl::MakeSpan(memory)).ok());
  ForEachElement(layout->manifest, [&](uint32_t tensor, int64_t element, uint64_t offset_bytes) {
    uint16_t upper;
    std::memcpy(&upper, memory.data() + offset_bytes, sizeof(upper));
    const auto found = std::bit_cast<float>(uint32_t{upper} << 16);
    const auto exact =
        static_cast<float>(numbered.first(layout->manifest.tensor_name(tensor)) + element);
    ASSERT_LE(std::abs(found - exact), std::abs(exact) / 256);
  });
}

TEST(WorkerLayout, KeepsGenericTensorsOrCutsTheirRows) {
  const ModelConfig config = ModelConfig::Generic("a test");
  const std::vector<CheckpointTensor> tensors = {
      {.name = "cube", .dtype = Dtype::kF16, .shape = {5, 2, 3}},
      {.name = "ids", .dtype = Dtype::kI64, .shape = {7}},
      {.name = "none", .dtype = Dtype::kU8, .shape = {0}},
      {.name = "number", .dtype = Dtype::kF16, .shape = {}}};
  const auto whole = MakeWorkerLayout(tensors, config, {}, 0);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(CheckManifest(whole->manifest, Holes::kRefused).message(), "");
  EXPECT_EQ(whole->parameters[0].shape, tensors[0].shape);
  EXPECT_EQ(whole->parameters[3].shape, tensors[3].shape);
  const std::vector<std::vector<int64_t>> rows = {{2, 3}, {2, 3}, {1, 1}, {0, 0}};
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto cut = MakeWorkerLayout(tensors, config, {.tp = 4}, rank);
    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_EQ(CheckManifest(cut->manifest, Holes::kRefused).message(), "");
    EXPECT_EQ(cut->parameters[0].shape,
              (std::vector<int64_t>{std::vector{2, 2, 1, 0}[rank], 2, 3}));
    EXPECT_EQ(cut->parameters[1].shape, (std::vector<int64_t>{std::vector{2, 2, 2, 1}[rank]}));
    EXPECT_EQ(cut->parameters[3].shape, std::vector<int64_t>());
  }
}

struct BadCase {
  const char* name;
  const char* config;
  WorkerSharding sharding;
  uint32_t rank;
  std::optional<Dtype> dtype;
  const char* message;
};

class WorkerLayoutRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(WorkerLayoutRefusesTest, AndNamesWhat) {
  const BadCase& c = GetParam();
  const auto layout = Layout(c.config, c.sharding, c.rank, c.dtype);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(layout.status().message(), c.message);
}

constexpr char kThreeHeads[] =
    R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 12, "n_head": 3, "n_layer": 1,
        "n_positions": 5, "vocab_size": 70})";
constexpr char kManyHeads[] =
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 48, "intermediate_size": 20,
        "num_hidden_layers": 1, "num_attention_heads": 24, "num_key_value_heads": 4,
        "vocab_size": 192})";
constexpr char kOddInner[] =
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 21,
        "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64})";

INSTANTIATE_TEST_SUITE_P(
    Cases, WorkerLayoutRefusesTest,
    testing::Values(
        BadCase{"a_rank_beyond_the_world", kQwen2, {.tp = 2}, 2, {}, "worker 2: tp=2 has 2 ranks"},
        BadCase{"a_vocabulary_that_tp_does_not_divide",
                kThreeHeads,
                {.tp = 3},
                0,
                {},
                "tensor \"transformer.wte.weight\": its 128 rows (70, padded to a multiple of 64) "
                "do not divide by tp=3; tp may be 1, 2, 4, 8, 16, 32, 64 or 128"},
        BadCase{"heads_that_tp_does_not_divide",
                kQwen2,
                {.tp = 8},
                0,
                {},
                "tensor \"model.layers.0.self_attn.q_proj.weight\": its 4 heads do not divide by "
                "tp=8; tp may be 1, 2 or 4"},
        BadCase{"kv_heads_that_tp_does_not_divide",
                kManyHeads,
                {.tp = 3},
                0,
                {},
                "tensor \"model.layers.0.self_attn.k_proj.weight\": its 4 key/value heads do not "
                "divide by tp=3; tp may be 1, 2 or 4"},
        BadCase{"kv_heads_that_do_not_divide_tp",
                kManyHeads,
                {.tp = 6},
                0,
                {},
                "tensor \"model.layers.0.self_attn.k_proj.weight\": tp=6 is no multiple of its 4 "
                "key/value heads; tp may be a divisor or a multiple of 4"},
        BadCase{
            "rows_that_tp_does_not_divide",
            kOddInner,
            {.tp = 2},
            0,
            {},
            "tensor \"model.layers.0.mlp.gate_proj.weight\": its 21 rows do not divide by tp=2; "
            "tp may be 1, 3, 7 or 21"},
        BadCase{"a_dtype_without_conversion",
                kQwen2,
                {},
                0,
                Dtype::kF8E4m3,
                "tensor \"model.embed_tokens.weight\" in parameter \"model.embed_tokens.weight\": "
                "no conversion from F32 to F8_E4M3; there are: the same format, U8 for 8-bit "
                "floats, F32 to and from F16 and BF16, BF16 to F16, each of them quantised; for "
                "others the "
                "trainer adds a tensor of the wanted type, which it fills before each publish"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(WorkerLayout, NamesATensorThatIsMissingMisshapenOrUnknown) {
  const ModelConfig config = *ParseModelConfig(kQwen2);
  const auto message = [&](const std::vector<CheckpointTensor>& tensors) {
    return std::string(MakeWorkerLayout(tensors, config, {}, 0).status().message());
  };
  const std::vector<CheckpointTensor> good = RequiredTensors(config, Dtype::kBf16);
  EXPECT_EQ(message(good), "");

  std::vector<CheckpointTensor> missing = good;
  std::erase_if(missing, [](const auto& t) { return t.name == "model.norm.weight"; });
  EXPECT_EQ(message(missing),
            "tensor \"model.norm.weight\" is missing, which a model of family qwen2 with 1 layers "
            "has");

  std::vector<CheckpointTensor> misshapen = good;
  misshapen[0].shape = {63, 8};
  EXPECT_EQ(message(misshapen),
            "tensor \"model.embed_tokens.weight\": its shape is [63, 8], by config.json it has to "
            "be [64, 8]");

  std::vector<CheckpointTensor> unknown = good;
  unknown.push_back({.name = "model.layers.1.mlp.up_proj.weight", .shape = {12, 8}});
  EXPECT_EQ(message(unknown),
            "tensor \"model.layers.1.mlp.up_proj.weight\" [12, 8]: a model of family qwen2 with 1 "
            "layers has none of that name");

  std::vector<CheckpointTensor> tied_but_stored = good;
  tied_but_stored.push_back({.name = "lm_head.weight", .shape = {64, 8}});
  tied_but_stored.push_back({.name = "model.layers.0.self_attn.rotary_emb.inv_freq", .shape = {1}});
  EXPECT_EQ(message(tied_but_stored), "");
}

}  // namespace
}  // namespace waybill
