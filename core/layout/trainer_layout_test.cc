// SPDX-License-Identifier: Apache-2.0

#include "core/layout/trainer_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/layout/checkpoint.h"
#include "core/layout/held_elements.h"
#include "core/layout/load_shards.h"
#include "core/layout/numbered_checkpoint.h"
#include "core/layout/safetensors_writer.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

constexpr char kLlama[] =
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 24, "intermediate_size": 20,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "vocab_size": 33, "tie_word_embeddings": false})";
constexpr char kQwen3Tied[] =
    R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 24, "intermediate_size": 20,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "vocab_size": 33, "tie_word_embeddings": true})";
constexpr char kGpt2[] =
    R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_head": 4, "n_layer": 3,
        "n_positions": 5, "vocab_size": 33})";

TestModel MakeGeneric() {
  return {ModelConfig::Generic("a test"),
          {{.name = "matrix", .dtype = Dtype::kF32, .shape = {7, 3}},
           {.name = "none", .dtype = Dtype::kF32, .shape = {0, 3}},
           {.name = "number", .dtype = Dtype::kF32, .shape = {}},
           {.name = "vector", .dtype = Dtype::kF32, .shape = {33}}}};
}

struct ShardingCase {
  const char* name;
  TrainerSharding sharding;
};

class TrainerShardingTest : public testing::TestWithParam<ShardingCase> {
 protected:
  // Every element is held by each dp rank, and by no more ranks of one dp rank than tp.
  void ExpectCovered(const TestModel& model) {
    const TrainerSharding& s = GetParam().sharding;
    std::map<std::string, std::vector<std::set<uint32_t>>> holders;
    for (const CheckpointTensor& t : model.tensors) {
      holders[t.name].resize(static_cast<size_t>(ElementCount(t)));
    }
    for (uint32_t rank = 0; rank < s.world(); ++rank) {
      const auto manifest = MakeTrainerManifest(model.tensors, model.config, s, rank);
      ASSERT_TRUE(manifest.ok()) << manifest.status();
      ASSERT_EQ(CheckManifest(*manifest, Holes::kAllowed).message(), "");
      for (const auto& [name, elements] : FindHeldElements(*manifest)) {
        for (const auto& [element, offset_bytes] : elements) {
          holders.at(name)[static_cast<size_t>(element)].insert(rank);
        }
      }
      for (uint32_t i = 0; i < manifest->shard_count(); ++i) {
        EXPECT_EQ(manifest->tensor_shape(manifest->shard(i).tensor_index).size(),
                  manifest->shard(i).place.strides.size());
      }
    }
    for (const auto& [name, elements] : holders) {
      for (size_t i = 0; i < elements.size(); ++i) {
        std::map<uint32_t, std::set<uint32_t>> tp_by_dp;
        std::set<uint32_t> fsdp, pp;
        for (const uint32_t rank : elements[i]) {
          tp_by_dp[s.replica(rank)].insert(s.tp_rank(rank));
          fsdp.insert(s.fsdp_rank(rank));
          pp.insert(s.pp_rank(rank));
        }
        ASSERT_EQ(tp_by_dp.size(), s.replicas) << name << " " << i;
        ASSERT_EQ(pp.size(), 1u) << name << " " << i;
        ASSERT_EQ(fsdp.size(), 1u) << name << " " << i;
        for (const auto& [dp, tp] : tp_by_dp) {
          ASSERT_EQ(tp.size(), tp_by_dp.begin()->second.size()) << name << " " << i;
          // On all or on one; key/value heads on an equal part of them.
          ASSERT_EQ(s.tp % tp.size(), 0u) << name << " " << i;
        }
      }
    }
  }
};

TEST_P(TrainerShardingTest, EveryElementIsHeld) {
  ExpectCovered(MakeModel(kLlama, Dtype::kF32));
  ExpectCovered(MakeModel(kQwen3Tied, Dtype::kF32));
  ExpectCovered(MakeModel(kGpt2, Dtype::kF32));
  if (GetParam().sharding.pp == 1) ExpectCovered(MakeGeneric());
}

INSTANTIATE_TEST_SUITE_P(
    Products, TrainerShardingTest,
    testing::Values(ShardingCase{"one", {}}, ShardingCase{"fsdp", {.fsdp = 4}},
                    ShardingCase{"fsdp_beyond_the_rows", {.fsdp = 40}},
                    ShardingCase{"tp", {.tp = 2}}, ShardingCase{"tp_beyond_kv_heads", {.tp = 4}},
                    ShardingCase{"pp", {.pp = 2}}, ShardingCase{"dp", {.replicas = 2}},
                    ShardingCase{"fsdp_tp", {.fsdp = 3, .tp = 2}},
                    ShardingCase{"hsdp", {.fsdp = 2, .replicas = 2}},
                    ShardingCase{"all", {.fsdp = 2, .tp = 2, .pp = 3, .replicas = 2}}),
    [](const auto& info) { return std::string(info.param.name); });

std::vector<std::string> Boxes(const TestModel& model, const TrainerSharding& sharding,
                               absl::string_view tensor) {
  std::vector<std::string> boxes;
  for (uint32_t rank = 0; rank < sharding.world(); ++rank) {
    const auto manifest = MakeTrainerManifest(model.tensors, model.config, sharding, rank);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    std::string of_rank;
    for (uint32_t i = 0; i < manifest->shard_count(); ++i) {
      const ShardView shard = manifest->shard(i);
      if (manifest->tensor_name(shard.tensor_index) != tensor) continue;
      of_rank += (of_rank.empty() ? "" : "; ") + ToString(shard.box);
    }
    boxes.push_back(of_rank.empty() ? "-" : of_rank);
  }
  return boxes;
}

using Strings = std::vector<std::string>;

TEST(TrainerLayout, FsdpCutsRowsAsTorchChunkDoes) {
  EXPECT_EQ(Boxes(MakeGeneric(), {.fsdp = 4}, "vector"),
            (Strings{"[0, 9)", "[9, 18)", "[18, 27)", "[27, 33)"}));
  EXPECT_EQ(
      Boxes(MakeGeneric(), {.fsdp = 5}, "matrix"),
      (Strings{"[0, 2) x [0, 3)", "[2, 4) x [0, 3)", "[4, 6) x [0, 3)", "[6, 7) x [0, 3)", "-"}));
  EXPECT_EQ(Boxes(MakeGeneric(), {.fsdp = 2}, "number"), (Strings{"scalar", "-"}));
}

TEST(TrainerLayout, TpCutsRowsOrColumns) {
  const TestModel model = MakeModel(kLlama, Dtype::kF32);
  EXPECT_EQ(Boxes(model, {.tp = 2}, "model.layers.1.mlp.up_proj.weight"),
            (Strings{"[0, 10) x [0, 24)", "[10, 20) x [0, 24)"}));
  EXPECT_EQ(Boxes(model, {.tp = 2}, "model.layers.1.mlp.down_proj.weight"),
            (Strings{"[0, 24) x [0, 10)", "[0, 24) x [10, 20)"}));
  EXPECT_EQ(Boxes(model, {.tp = 2}, "model.norm.weight"), (Strings{"[0, 24)", "[0, 24)"}));
  EXPECT_EQ(
      Boxes(model, {.tp = 4}, "model.layers.0.self_attn.k_proj.weight"),
      (Strings{"[0, 6) x [0, 24)", "[0, 6) x [0, 24)", "[6, 12) x [0, 24)", "[6, 12) x [0, 24)"}));
  EXPECT_EQ(Boxes(model, {.tp = 2}, "lm_head.weight"),
            (Strings{"[0, 17) x [0, 24)", "[17, 33) x [0, 24)"}));
}

TEST(TrainerLayout, FsdpCutsTheRowsThatTpLeft) {
  EXPECT_EQ(Boxes(MakeModel(kLlama, Dtype::kF32), {.fsdp = 2, .tp = 2},
                  "model.layers.1.mlp.up_proj.weight"),
            (Strings{"[0, 5) x [0, 24)", "[10, 15) x [0, 24)", "[5, 10) x [0, 24)",
                     "[15, 20) x [0, 24)"}));
  // The second rank has the last 6 of the 12 local rows of q, k and v each: half of k, and v.
  EXPECT_EQ(
      Boxes(MakeModel(kGpt2, Dtype::kF32), {.fsdp = 2, .tp = 2},
            "transformer.h.0.attn.c_attn.bias"),
      (Strings{"[0, 4); [8, 10)", "[4, 8); [12, 14)", "[10, 12); [16, 20)", "[14, 16); [20, 24)"}));
}

TEST(TrainerLayout, FusedColumnsLieSideBySide) {
  const TestModel model = MakeModel(kGpt2, Dtype::kF32);
  const auto manifest = MakeTrainerManifest(model.tensors, model.config, {.fsdp = 2, .tp = 2}, 3);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  Strings places;
  for (uint32_t i = 0; i < manifest->shard_count(); ++i) {
    const ShardView shard = manifest->shard(i);
    if (manifest->tensor_name(shard.tensor_index) != "transformer.h.0.attn.c_attn.weight") continue;
    places.push_back(absl::StrCat(ToString(shard.box), " stride ", shard.place.strides[0]));
    EXPECT_EQ(shard.place.offset_bytes % 64, (places.size() - 1) * 4 * 4);
  }
  EXPECT_EQ(places, (Strings{"[4, 8) x [4, 8) stride 12", "[4, 8) x [12, 16) stride 12",
                             "[4, 8) x [20, 24) stride 12"}));
}

TEST(TrainerLayout, PpDealsLayersInOrder) {
  const TestModel model = MakeModel(kLlama, Dtype::kF32);
  const auto holds = [&](uint32_t rank, absl::string_view tensor) {
    return Boxes(model, {.pp = 2}, tensor)[rank] != "-";
  };
  const auto norm = [](int layer) {
    return absl::StrCat("model.layers.", layer, ".input_layernorm.weight");
  };
  EXPECT_TRUE(holds(0, "model.embed_tokens.weight"));
  EXPECT_TRUE(holds(0, norm(0)));
  EXPECT_TRUE(holds(1, norm(1)));
  EXPECT_TRUE(holds(1, norm(2)));
  EXPECT_TRUE(holds(1, "model.norm.weight"));
  EXPECT_TRUE(holds(1, "lm_head.weight"));
}

// Returns the layers of each stage, and checks who has what is outside the layers.
std::vector<std::set<int64_t>> StageLayers(int64_t layers, absl::string_view sharding_text) {
  const TestModel model = MakeModel(absl::StrReplaceAll(
      kLlama, {{"\"num_hidden_layers\": 3", absl::StrCat("\"num_hidden_layers\": ", layers)}}));
  const auto sharding = TrainerSharding::Parse(sharding_text);
  EXPECT_TRUE(sharding.ok()) << sharding.status();
  std::vector<std::set<int64_t>> stages;
  for (uint32_t rank = 0; rank < sharding->world(); ++rank) {
    const auto manifest = MakeTrainerManifest(model.tensors, model.config, *sharding, rank);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    std::set<std::string> outside;
    std::map<int64_t, int> tensors;
    for (uint32_t i = 0; i < manifest->tensor_count(); ++i) {
      absl::string_view name = manifest->tensor_name(i);
      int64_t layer;
      if (!absl::ConsumePrefix(&name, "model.layers.")) {
        outside.emplace(name);
      } else if (absl::SimpleAtoi(name.substr(0, name.find('.')), &layer)) {
        ++tensors[layer];
      }
    }
    std::set<std::string> expected;
    if (rank == 0) expected = {"model.embed_tokens.weight"};
    if (rank + 1 == sharding->world()) expected = {"model.norm.weight", "lm_head.weight"};
    EXPECT_EQ(outside, expected) << "rank " << rank;
    std::set<int64_t>& stage = stages.emplace_back();
    for (const auto& [layer, count] : tensors) {
      EXPECT_EQ(count, 9) << "layer " << layer;
      stage.insert(layer);
    }
  }
  return stages;
}

struct ChunkCase {
  const char* name;
  int64_t layers;
  const char* sharding;
  std::vector<std::set<int64_t>> stages;
};

class InterleavedStagesTest : public testing::TestWithParam<ChunkCase> {};

TEST_P(InterleavedStagesTest, GetAChunkInEachRound) {
  EXPECT_EQ(StageLayers(GetParam().layers, GetParam().sharding), GetParam().stages);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, InterleavedStagesTest,
    testing::Values(
        ChunkCase{"of_one_layer", 8, "megatron,pp=2,vpp=4", {{0, 2, 4, 6}, {1, 3, 5, 7}}},
        ChunkCase{"of_two_layers", 8, "megatron,pp=2,vpp=2", {{0, 1, 4, 5}, {2, 3, 6, 7}}},
        ChunkCase{"of_a_smaller_first_stage",
                  10,
                  "megatron,vpp=2,stages=2+4+4",
                  {{0, 5}, {1, 2, 6, 7}, {3, 4, 8, 9}}},
        ChunkCase{"of_a_smaller_first_and_last_stage",
                  16,
                  "megatron,vpp=2,stages=2+6+6+2",
                  {{0, 8}, {1, 2, 3, 9, 10, 11}, {4, 5, 6, 12, 13, 14}, {7, 15}}}),
    [](const auto& info) { return std::string(info.param.name); });

// Megatron-Core's formula for the first layer of a chunk, for all numbers of chunks that divide.
TEST(TrainerLayout, ChunksOfEqualStagesBeginWhereMegatronSays) {
  constexpr int64_t kLayers = 24;
  for (int64_t pp = 2; pp <= kLayers; ++pp) {
    for (int64_t vpp = 1; pp * vpp <= kLayers; ++vpp) {
      if (kLayers % (pp * vpp) != 0) continue;
      std::vector<std::set<int64_t>> expected(static_cast<size_t>(pp));
      for (int64_t stage = 0; stage < pp; ++stage) {
        for (int64_t chunk = 0; chunk < vpp; ++chunk) {
          const int64_t first = chunk * (kLayers / vpp) + stage * (kLayers / pp / vpp);
          for (int64_t i = 0; i < kLayers / pp / vpp; ++i) {
            expected[static_cast<size_t>(stage)].insert(first + i);
          }
        }
      }
      EXPECT_EQ(StageLayers(kLayers, absl::StrCat("megatron,pp=", pp, ",vpp=", vpp)), expected)
          << "pp=" << pp << " vpp=" << vpp;
    }
  }
}

TEST(TrainerLayout, ATiedHeadIsAnAliasWhereTheEmbeddingIs) {
  const TestModel model = MakeModel(kQwen3Tied, Dtype::kF32);
  const auto manifest = MakeTrainerManifest(model.tensors, model.config, {.pp = 2}, 0);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->alias_count(), 1u);
  EXPECT_EQ(manifest->alias_name(0), "lm_head.weight");
  EXPECT_EQ(manifest->tensor_name(manifest->alias_tensor(0)), "model.embed_tokens.weight");
  EXPECT_EQ(MakeTrainerManifest(model.tensors, model.config, {.pp = 2}, 1)->alias_count(), 0u);
}

TEST(TrainerLayout, ARankWithoutAnythingHasMemoryAnyway) {
  const TestModel model = MakeGeneric();
  const auto manifest = MakeTrainerManifest(model.tensors, model.config, {.fsdp = 40}, 39);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->shard_count(), 0u);
  EXPECT_EQ(manifest->region_bytes(0), 64u);
}

TEST(LoadShards, PutsEveryElementInItsPlace) {
  for (const char* config : {kLlama, kGpt2}) {
    const Numbered numbered(MakeModel(config, Dtype::kF32).tensors);
    const std::string directory = FreshDirectory("model");
    ASSERT_TRUE(
        WriteCheckpoint(directory, config, numbered.tensors(), 1 << 20, Durability::kCached).ok());
    const auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const TrainerSharding sharding{.fsdp = 2, .tp = 2};
    for (uint32_t rank = 0; rank < sharding.world(); ++rank) {
      const auto manifest =
          MakeTrainerManifest(checkpoint->tensors(), checkpoint->config(), sharding, rank);
      ASSERT_TRUE(manifest.ok()) << manifest.status();
      std::vector<std::byte> memory(manifest->region_bytes(0));
      ASSERT_TRUE(LoadShards(*checkpoint, *manifest, absl::MakeSpan(memory)).ok());
      ForEachElement(*manifest, [&](uint32_t tensor, int64_t element, uint64_t offset_bytes) {
        float found;
        std::memcpy(&found, memory.data() + offset_bytes, sizeof(found));
        ASSERT_EQ(found, numbered.first(manifest->tensor_name(tensor)) + element);
      });
    }
  }
}

struct BadCase {
  const char* name;
  const char* config;
  TrainerSharding sharding;
  uint32_t rank;
  const char* message;
};

class TrainerLayoutRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(TrainerLayoutRefusesTest, AndNamesWhat) {
  const BadCase& c = GetParam();
  const TestModel model = c.config == nullptr ? MakeGeneric() : MakeModel(c.config, Dtype::kF32);
  const auto manifest = MakeTrainerManifest(model.tensors, model.config, c.sharding, c.rank);
  EXPECT_EQ(manifest.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manifest.status().message(), c.message);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TrainerLayoutRefusesTest,
    testing::Values(
        BadCase{"a_rank_beyond_the_world",
                kLlama,
                {.fsdp = 2, .tp = 2},
                4,
                "trainer 4: fsdp=2,tp=2 has 4 ranks"},
        BadCase{"more_stages_than_layers",
                kLlama,
                {.pp = 4},
                0,
                "pp=4: the model has 3 layers; pp may be 1 to 3"},
        BadCase{"chunks_that_do_not_divide_the_layers",
                kLlama,
                {.framework = Framework::kMegatron, .pp = 3, .vpp = 2},
                0,
                "pp=3 times vpp=2 does not divide the model's 3 layers; their product may be 1 or "
                "3, or stages= may say the layers of each stage"},
        BadCase{"stages_of_a_generic_model",
                nullptr,
                {.pp = 2},
                0,
                "pp=2: a generic model has no layers to deal out (a test)"},
        BadCase{"heads_that_tp_does_not_divide",
                kLlama,
                {.tp = 3},
                0,
                "tensor \"model.layers.0.self_attn.q_proj.weight\": its 4 heads do not divide by "
                "tp=3; tp may be 1, 2 or 4"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
