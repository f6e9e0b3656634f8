// SPDX-License-Identifier: Apache-2.0

// Where the engines' own loaders and torch's FSDP put every element, against where this package
// says they go. README.md says what the files hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/layout/checkpoint.h"
#include "core/layout/load_shards.h"
#include "core/layout/numbered_checkpoint.h"
#include "core/layout/safetensors_writer.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

using nlohmann::json;

std::string Golden(absl::string_view name) {
  return ReadFile(absl::StrCat("core/layout/golden/", name, ".json"));
}

struct MapCase {
  const char* name;
  const char* config;
  const char* map;
  WorkerSharding sharding;
  uint32_t rank;
};

// Opens the checkpoint that a map's `source` describes: elements are numbered from 1 in the order
// of their tensors' numbers.
absl::StatusOr<Checkpoint> OpenNumbered(const json& source, const char* config) {
  std::vector<std::pair<int64_t, CheckpointTensor>> by_number;
  for (const auto& [name, tensor] : source.items()) {
    by_number.push_back(
        {tensor[0], {.name = name, .shape = tensor[1].get<std::vector<int64_t>>()}});
  }
  std::sort(by_number.begin(), by_number.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<CheckpointTensor> tensors;
  for (auto& [first, tensor] : by_number) tensors.push_back(std::move(tensor));
  const Numbered numbered(std::move(tensors));

  const std::string directory = FreshDirectory("model");
  const absl::Status written = WriteCheckpoint(directory, Golden(config), numbered.tensors(),
                                               uint64_t{1} << 20, Durability::kCached);
  if (!written.ok()) return written;
  return Checkpoint::Open(directory);
}

// Returns what an array of `count` elements holds by a map's runs; what no element fills is 0.
std::vector<float> Fill(const json& runs, size_t count) {
  std::vector<float> filled(count, 0);
  for (const json& run : runs) {
    for (int64_t i = 0; i < run[2]; ++i) {
      filled.at(static_cast<size_t>(run[0].get<int64_t>() + i)) =
          static_cast<float>(run[1].get<int64_t>() + i);
    }
  }
  return filled;
}

class EngineMapTest : public testing::TestWithParam<MapCase> {};

TEST_P(EngineMapTest, EveryElementIsWhereTheLoaderPutsIt) {
  const MapCase& c = GetParam();
  const json golden = json::parse(Golden(c.map));
  const auto checkpoint = OpenNumbered(golden["source"], c.config);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto layout =
      MakeWorkerLayout(checkpoint->tensors(), checkpoint->config(), c.sharding, c.rank);
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(CheckManifest(layout->manifest, Holes::kRefused).message(), "");

  // -1 would show an element that is neither loaded nor declared padding.
  std::vector<float> memory(layout->manifest.region_bytes(0) / 4, -1);
  for (uint32_t i = 0; i < layout->manifest.padding_count(); ++i) {
    const PaddingView padding = layout->manifest.padding(i);
    int64_t count = 1;
    for (const int64_t extent : padding.extents) count *= extent;
    for (int64_t n = 0; n < count; ++n) {
      int64_t rest = n, place = 0;
      for (size_t d = padding.extents.size(); d-- > 0; rest /= padding.extents[d]) {
        place += rest % padding.extents[d] * padding.place.strides[d];
      }
      std::memset(reinterpret_cast<char*>(memory.data()) + padding.place.offset_bytes +
                      place * padding.element_bytes,
                  0, padding.element_bytes);
    }
  }
  const absl::Status loaded =
      LoadShards(*checkpoint, layout->manifest,
                 {reinterpret_cast<std::byte*>(memory.data()), memory.size() * 4});
  ASSERT_TRUE(loaded.ok()) << loaded;

  ASSERT_EQ(layout->parameters.size(), golden["dest"].size());
  int64_t compared = 0;
  for (const Parameter& parameter : layout->parameters) {
    ASSERT_TRUE(golden["dest"].contains(parameter.name)) << parameter.name;
    ASSERT_EQ(golden["dest"][parameter.name].get<std::vector<int64_t>>(), parameter.shape)
        << parameter.name;
    const std::vector<float> expected =
        Fill(golden["runs"][parameter.name],
             static_cast<size_t>(Box::Whole(parameter.shape).element_count()));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(memory[parameter.offset_bytes / 4 + i], expected[i])
          << parameter.name << ", element " << i;
    }
    compared += static_cast<int64_t>(expected.size());
  }
  EXPECT_GT(compared, 30'000);
}

INSTANTIATE_TEST_SUITE_P(
    Maps, EngineMapTest,
    testing::Values(
        MapCase{"fused", "config_tiny-llama", "vllm_tiny-llama_tp2r1", {.tp = 2}, 1},
        MapCase{"padded_vocabulary", "config_tiny-qwen3", "vllm_tiny-qwen3_tp4r3", {.tp = 4}, 3},
        MapCase{"replicated_kv_heads", "config_tiny-qwen3", "vllm_tiny-qwen3_tp8r5", {.tp = 8}, 5},
        MapCase{"cut_experts", "config_tiny-qwen3-moe", "vllm_tiny-qwen3-moe_tp4r0", {.tp = 4}, 0},
        MapCase{"whole_experts",
                "config_tiny-qwen3-moe",
                "vllm_tiny-qwen3-moe_tp4r2ep",
                {.tp = 4, .ep = 4},
                2},
        MapCase{"latent_attention_and_shared_experts",
                "config_tiny-deepseek-v3-bf16",
                "vllm_tiny-deepseek-v3-bf16_tp4r3",
                {.tp = 4},
                3},
        MapCase{"replicated_kv_heads_in_sglang",
                "config_tiny-qwen3",
                "sgl_tiny-qwen3_tp8r5",
                {.tp = 8, .engine = Engine::kSglang},
                5},
        MapCase{"experts_dealt_and_cut_in_sglang",
                "config_tiny-qwen3-moe",
                "sgl_tiny-qwen3-moe_tp4r3ep2",
                {.tp = 4, .ep = 2, .engine = Engine::kSglang},
                3},
        MapCase{"latent_attention_in_sglang",
                "config_tiny-deepseek-v3-bf16",
                "sgl_tiny-deepseek-v3-bf16_tp8r5ep8",
                {.tp = 8, .ep = 8, .engine = Engine::kSglang},
                5},
        MapCase{"biases_and_norms_in_sglang",
                "config_tiny-glm-4.5",
                "sgl_tiny-glm-4.5_tp4r1ep2",
                {.tp = 4, .ep = 2, .engine = Engine::kSglang},
                1},
        MapCase{"mxfp4_for_triton",
                "config_tiny-gpt-oss-mxfp4",
                "vllm_tiny-gpt-oss-mxfp4_tp2r1",
                {.tp = 2},
                1},
        MapCase{"mxfp4_for_trtllm",
                "config_tiny-gpt-oss-mxfp4",
                "vllm_tiny-gpt-oss-mxfp4_tp2r1trtllm",
                {.tp = 2, .mxfp4 = Mxfp4Kernel::kTrtllm},
                1},
        MapCase{"mxfp4_of_whole_experts_for_cutlass",
                "config_tiny-gpt-oss-mxfp4",
                "vllm_tiny-gpt-oss-mxfp4_tp2r1epcutlass",
                {.tp = 2, .ep = 2, .mxfp4 = Mxfp4Kernel::kCutlass},
                1},
        MapCase{"mxfp4_for_processors",
                "config_tiny-gpt-oss-mxfp4",
                "vllm_tiny-gpt-oss-mxfp4_tp2r0cpu",
                {.tp = 2, .mxfp4 = Mxfp4Kernel::kCpu},
                0}),
    [](const auto& info) { return std::string(info.param.name); });

struct FlatCase {
  const char* name;
  const char* config;
  const char* map;
  bool original_params;
};

class FlatParameterTest : public testing::TestWithParam<FlatCase> {};

// A rank's flat arrays lie one behind the other, each at a multiple of 64 bytes.
TEST_P(FlatParameterTest, EveryElementOfEachRankIsWhereTorchHasIt) {
  const FlatCase& c = GetParam();
  const json golden = json::parse(Golden(c.map));
  const auto checkpoint = OpenNumbered(golden["source"], c.config);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto world = static_cast<uint32_t>(golden["ranks"].size());
  for (uint32_t rank = 0; rank < world; ++rank) {
    const auto manifest = MakeTrainerManifest(
        checkpoint->tensors(), checkpoint->config(),
        {.framework = Framework::kFsdp1, .fsdp = world, .original_params = c.original_params},
        rank);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    ASSERT_EQ(CheckManifest(*manifest, Holes::kAllowed).message(), "");
    std::vector<float> memory(manifest->region_bytes(0) / 4, 0);
    const absl::Status loaded = LoadShards(
        *checkpoint, *manifest, {reinterpret_cast<std::byte*>(memory.data()), memory.size() * 4});
    ASSERT_TRUE(loaded.ok()) << loaded;

    std::vector<float> expected;
    for (const json& unit : golden["ranks"][rank]) {
      const std::vector<float> flat = Fill(unit[1], unit[0].get<size_t>());
      expected.insert(expected.end(), flat.begin(), flat.end());
      expected.resize((expected.size() + 15) / 16 * 16, 0);
    }
    ASSERT_EQ(memory, expected) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Maps, FlatParameterTest,
    testing::Values(FlatCase{"flat", "config_tiny-qwen2", "fsdp1_tiny-qwen2_of3", false},
                    FlatCase{"original", "config_tiny-qwen2", "fsdp1_tiny-qwen2_of3original", true},
                    FlatCase{"original_with_parameters_of_modules_that_have_modules",
                             "config_tiny-gpt-oss", "fsdp1_tiny-gpt-oss_of3original", true}),
    [](const auto& info) { return std::string(info.param.name); });

struct LayoutCase {
  const char* config;
  const char* layout;
  WorkerSharding sharding;
  uint32_t rank;
};

const char* TorchName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16:
      return "bfloat16";
    case Dtype::kF32:
      return "float32";
    case Dtype::kF8E4m3:
      return "float8_e4m3fn";
    default:
      return "another";
  }
}

class EngineLayoutTest : public testing::TestWithParam<LayoutCase> {};

// Trainers hold BF16; the engine serves as config.json says.
TEST_P(EngineLayoutTest, NamesTypesAndShapesAreTheEngines) {
  const LayoutCase& c = GetParam();
  const auto config = ParseModelConfig(Golden(c.config));
  ASSERT_TRUE(config.ok()) << config.status();
  const auto serving = ParseServing("", "", *config);
  ASSERT_TRUE(serving.ok()) << serving.status();
  const auto layout = MakeWorkerLayout(RequiredTensors(*config, Dtype::kBf16), *config, c.sharding,
                                       c.rank, *serving);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(CheckManifest(layout->manifest, Holes::kRefused).message(), "");

  const json golden = json::parse(Golden(c.layout));
  for (size_t i = 0; i < std::min(golden.size(), layout->parameters.size()); ++i) {
    const Parameter& parameter = layout->parameters[i];
    ASSERT_EQ(parameter.name, golden[i][0].get<std::string>());
    EXPECT_EQ(TorchName(parameter.format.dtype), golden[i][1].get<std::string>()) << parameter.name;
    EXPECT_EQ(parameter.shape, golden[i][2].get<std::vector<int64_t>>()) << parameter.name;
  }
  EXPECT_EQ(layout->parameters.size(), golden.size());
}

constexpr WorkerSharding kSglangTp2{.tp = 2, .engine = Engine::kSglang};
constexpr WorkerSharding kSglangTp4{.tp = 4, .engine = Engine::kSglang};
constexpr WorkerSharding kSglangEp4{.tp = 4, .ep = 4, .engine = Engine::kSglang};
constexpr WorkerSharding kSglangEp8{.tp = 8, .ep = 8, .engine = Engine::kSglang};

INSTANTIATE_TEST_SUITE_P(
    Layouts, EngineLayoutTest,
    testing::Values(
        LayoutCase{"config_qwen3-0.6b", "vllm_qwen3-0.6b_tp2r1", {.tp = 2}, 1},
        LayoutCase{"config_llama-3.1-8b", "vllm_llama-3.1-8b_tp4r0", {.tp = 4}, 0},
        LayoutCase{"config_qwen3-30b-a3b", "vllm_qwen3-30b-a3b_tp4r1", {.tp = 4}, 1},
        LayoutCase{"config_qwen3-30b-a3b", "vllm_qwen3-30b-a3b_tp4r1ep", {.tp = 4, .ep = 4}, 1},
        LayoutCase{"config_qwen3-30b-a3b-fp8", "vllm_qwen3-30b-a3b-fp8_tp4r1", {.tp = 4}, 1},
        LayoutCase{
            "config_qwen3-30b-a3b-fp8", "vllm_qwen3-30b-a3b-fp8_tp4r1ep", {.tp = 4, .ep = 4}, 1},
        LayoutCase{"config_deepseek-v3-bf16", "vllm_deepseek-v3-bf16_tp8r0", {.tp = 8}, 0},
        LayoutCase{"config_deepseek-v3", "vllm_deepseek-v3_tp8r0", {.tp = 8}, 0},
        LayoutCase{"config_tiny-deepseek-v3-plain-query",
                   "vllm_tiny-deepseek-v3-plain-query_tp2r1",
                   {.tp = 2},
                   1},
        LayoutCase{"config_kimi-k2-of-3-layers", "vllm_kimi-k2-of-3-layers_tp16r5", {.tp = 16}, 5},
        LayoutCase{"config_tiny-qwen3-moe-mixed", "vllm_tiny-qwen3-moe-mixed_tp4r3", {.tp = 4}, 3},
        LayoutCase{"config_glm-4.5-of-5-layers",
                   "vllm_glm-4.5-of-5-layers_tp8r3ep",
                   {.tp = 8, .ep = 8},
                   3},
        LayoutCase{
            "config_glm-4.5-fp8-of-5-layers", "vllm_glm-4.5-fp8-of-5-layers_tp4r3", {.tp = 4}, 3},
        LayoutCase{"config_gpt-oss-bf16-of-2-layers",
                   "vllm_gpt-oss-bf16-of-2-layers_tp4r1ep",
                   {.tp = 4, .ep = 4},
                   1},
        LayoutCase{"config_deepseek-v3", "sgl_deepseek-v3_tp8r0ep8", kSglangEp8, 0},
        LayoutCase{"config_qwen3-30b-a3b", "sgl_qwen3-30b-a3b_tp4r1ep1", kSglangTp4, 1},
        LayoutCase{"config_qwen3-0.6b", "sgl_qwen3-0.6b_tp2r1ep1", kSglangTp2, 1},
        LayoutCase{"config_tiny-deepseek-v3-plain-query",
                   "sgl_tiny-deepseek-v3-plain-query_tp2r1ep1", kSglangTp2, 1},
        LayoutCase{"config_gpt-oss-bf16-of-2-layers", "sgl_gpt-oss-bf16-of-2-layers_tp4r1ep4",
                   kSglangEp4, 1},
        LayoutCase{"config_glm-4.5-fp8-of-5-layers", "sgl_glm-4.5-fp8-of-5-layers_tp4r3ep4",
                   kSglangEp4, 3},
        LayoutCase{"config_qwen3-30b-a3b",
                   "sgl_qwen3-30b-a3b_tp8r5ep8dp4",
                   {.tp = 2, .dp = 4, .ep = 8, .engine = Engine::kSglang},
                   5}),
    [](const auto& info) {
      std::string name = info.param.layout;
      for (char& c : name) c = isalnum(c) != 0 ? c : '_';
      return name;
    });

}  // namespace
}  // namespace waybill
