// SPDX-License-Identifier: Apache-2.0

// What trainers of MoE models hold, against each framework's definition, element by element.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/layout/held_elements.h"
#include "core/layout/numbered_checkpoint.h"
#include "core/layout/parameters.h"
#include "core/layout/trainer_layout.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

constexpr int64_t kHeads = 8, kKvHeads = 4, kHeadDim = 2, kHidden = 12, kLayers = 5, kExperts = 6;
constexpr char kQwen3Moe[] =
    R"({"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 12, "intermediate_size": 16,
        "moe_intermediate_size": 8, "num_experts": 6, "mlp_only_layers": [1],
        "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 2,
        "vocab_size": 33})";
constexpr char kDeepseekV3[] =
    R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 12, "intermediate_size": 16,
        "moe_intermediate_size": 8, "n_routed_experts": 6, "n_shared_experts": 1,
        "first_k_dense_replace": 2, "topk_method": "noaux_tc", "num_hidden_layers": 5,
        "num_attention_heads": 8, "q_lora_rank": 6, "kv_lora_rank": 4, "qk_nope_head_dim": 3,
        "qk_rope_head_dim": 2, "v_head_dim": 3, "vocab_size": 33})";
constexpr char kGptOss[] =
    R"({"architectures": ["GptOssForCausalLM"], "hidden_size": 12, "intermediate_size": 8,
        "num_local_experts": 6, "num_hidden_layers": 5, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 2, "vocab_size": 33})";

// The number behind `before` in a name, or -1.
int64_t NumberBehind(absl::string_view name, absl::string_view before) {
  const size_t at = name.find(before);
  if (at == name.npos) return -1;
  name.remove_prefix(at + before.size());
  int64_t number = -1;
  return absl::SimpleAtoi(name.substr(0, name.find('.')), &number) ? number : -1;
}

// A rank's place, worked out from the frameworks' documents.
struct Coordinates {
  int64_t tp, tp_rank;    // For what is no expert.
  int64_t etp, etp_rank;  // For experts.
  int64_t ep, ep_rank;
  int64_t rows, rows_rank;                // FSDP of what is no expert,
  int64_t expert_rows, expert_rows_rank;  // and of experts.
  int64_t first_layer, end_layer;
  bool megatron;
};

// [begin, end) of `extent` things that part `index` of `count` has as torch.chunk deals.
std::pair<int64_t, int64_t> Chunk(int64_t extent, int64_t count, int64_t index) {
  const int64_t size = (extent + count - 1) / count;
  return {std::min(extent, index * size), std::min(extent, (index + 1) * size)};
}

bool IsHeld(const CheckpointTensor& tensor, int64_t element, const Coordinates& at) {
  const absl::string_view name = tensor.name;
  std::vector<int64_t> index(tensor.shape.size());
  for (size_t d = tensor.shape.size(); d-- > 0; element /= tensor.shape[d]) {
    index[d] = element % tensor.shape[d];
  }
  std::vector<int64_t> shape = tensor.shape;
  const int64_t layer = NumberBehind(name, ".layers.");
  if (layer >= 0 && (layer < at.first_layer || layer >= at.end_layer)) return false;
  if (layer < 0 && name == "model.embed_tokens.weight" && at.first_layer > 0) return false;
  if (layer < 0 && name != "model.embed_tokens.weight" && at.end_layer < kLayers) return false;

  // Narrows axis d to [begin, end), and says whether the element is in it.
  const auto narrow = [&](size_t d, int64_t begin, int64_t end) {
    if (index[d] < begin || index[d] >= end) return false;
    index[d] -= begin;
    shape[d] = end - begin;
    return true;
  };
  const auto part = [&](size_t d, int64_t count, int64_t rank) {
    return narrow(d, shape[d] / count * rank, shape[d] / count * (rank + 1));
  };
  const bool stacked =
      absl::StrContains(name, "mlp.experts.gate_up") || absl::StrContains(name, "mlp.experts.down");
  const int64_t expert = NumberBehind(name, ".mlp.experts.");
  const bool of_expert = stacked || expert >= 0;
  const int64_t each = kExperts / at.ep;
  if (expert >= 0 && expert / each != at.ep_rank) return false;
  if (stacked && !narrow(0, each * at.ep_rank, each * (at.ep_rank + 1))) return false;

  const int64_t tp = of_expert ? at.etp : at.tp, rank = of_expert ? at.etp_rank : at.tp_rank;
  const auto ends = [&](absl::string_view end) { return absl::EndsWith(name, end); };
  if (ends("gate_up_proj")) {  // [experts, inputs, outputs]
    if (!part(2, tp, rank)) return false;
  } else if (ends("down_proj") || ends("gate_up_proj_bias")) {
    if (!part(1, tp, rank)) return false;
  } else if (ends("down_proj_bias")) {  // Each rank of tensor parallelism has it.
  } else if (ends("embed_tokens.weight") || ends("lm_head.weight")) {
    const int64_t padded = (shape[0] + 128 * tp - 1) / (128 * tp) * (128 * tp);
    const auto [begin, end] = at.megatron ? std::pair(std::min(shape[0], padded / tp * rank),
                                                      std::min(shape[0], padded / tp * (rank + 1)))
                                          : Chunk(shape[0], tp, rank);
    if (!narrow(0, begin, end)) return false;
  } else if (absl::StrContains(name, "k_proj") || absl::StrContains(name, "v_proj")) {
    const int64_t head = shape[0] / kKvHeads;
    const int64_t begin = kKvHeads * rank / tp * head;
    if (!narrow(0, begin, begin + std::max<int64_t>(1, kKvHeads / tp) * head)) return false;
  } else if (ends("o_proj.weight") || ends("down_proj.weight")) {
    if (!part(1, tp, rank)) return false;
  } else if (absl::StrContains(name, "q_proj") || ends("q_b_proj.weight") ||
             ends("kv_b_proj.weight") || ends("gate_proj.weight") || ends("up_proj.weight") ||
             ends("sinks")) {
    if (!part(0, tp, rank)) return false;
  }
  const auto [begin, end] = of_expert ? Chunk(shape[0], at.expert_rows, at.expert_rows_rank)
                                      : Chunk(shape[0], at.rows, at.rows_rank);
  return index[0] >= begin && index[0] < end;
}

struct HeldCase {
  const char* name;
  const char* sharding;
  std::vector<Coordinates> (*ranks)();
};

std::vector<Coordinates> Fsdp(int64_t fsdp, int64_t ep, int64_t tp, int64_t replicas) {
  std::vector<Coordinates> ranks;
  for (int64_t replica = 0; replica < replicas; ++replica) {
    for (int64_t f = 0; f < fsdp; ++f) {
      for (int64_t t = 0; t < tp; ++t) {
        ranks.push_back({tp, t, tp, t, ep, f % ep, fsdp, f, fsdp / ep, f / ep, 0, kLayers, false});
      }
    }
  }
  return ranks;
}

std::vector<Coordinates> Megatron(int64_t tp, int64_t dp, int64_t ep, int64_t etp,
                                  const std::vector<int64_t>& stages) {
  std::vector<Coordinates> ranks;
  int64_t layer = 0;
  for (const int64_t layers : stages) {
    for (int64_t r = 0; r < tp * dp; ++r) {
      ranks.push_back(
          {tp, r % tp, etp, r % etp, ep, r / etp % ep, 1, 0, 1, 0, layer, layer + layers, true});
    }
    layer += layers;
  }
  return ranks;
}

const HeldCase kHeldCases[] = {
    {"hsdp", "fsdp=5,replicas=2", [] { return Fsdp(5, 1, 1, 2); }},
    {"experts_dealt_out", "fsdp=6,ep=3", [] { return Fsdp(6, 3, 1, 1); }},
    {"experts_dealt_out_and_cut", "fsdp=4,ep=2,tp=2,replicas=2", [] { return Fsdp(4, 2, 2, 2); }},
    {"megatron_tp", "megatron,tp=4", [] { return Megatron(4, 1, 1, 4, {5}); }},
    {"megatron_repeats_kv_heads", "megatron,tp=8", [] { return Megatron(8, 1, 1, 8, {5}); }},
    {"megatron_experts_by_dp", "megatron,tp=2,ep=3,pp=2",
     [] { return Megatron(2, 3, 3, 2, {2, 3}); }},
    {"megatron_whole_experts", "megatron,tp=4,dp=3,ep=6,etp=1",
     [] { return Megatron(4, 3, 6, 1, {5}); }},
    {"megatron_uneven_stages", "megatron,tp=2,dp=2,stages=1+3+1,qkv=fused",
     [] { return Megatron(2, 2, 1, 2, {1, 3, 1}); }},
    {"megatron_split_qkv", "megatron,tp=2,qkv=split", [] { return Megatron(2, 1, 1, 2, {5}); }},
};

class MoeTrainerTest : public testing::TestWithParam<HeldCase> {};

TEST_P(MoeTrainerTest, HoldsWhatItsFrameworkGivesIt) {
  const auto sharding = TrainerSharding::Parse(GetParam().sharding);
  ASSERT_TRUE(sharding.ok()) << sharding.status();
  const std::vector<Coordinates> ranks = GetParam().ranks();
  ASSERT_EQ(sharding->world(), ranks.size());
  for (const char* config : {kQwen3Moe, kDeepseekV3, kGptOss}) {
    const TestModel model = MakeModel(config);
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const auto manifest = MakeTrainerManifest(model.tensors, model.config, *sharding, rank);
      ASSERT_TRUE(manifest.ok()) << manifest.status();
      ASSERT_EQ(CheckManifest(*manifest, Holes::kAllowed).message(), "");
      HeldElements held = FindHeldElements(*manifest);
      for (const CheckpointTensor& tensor : model.tensors) {
        const std::map<int64_t, uint64_t>& of_tensor = held[tensor.name];
        for (int64_t i = 0; i < ElementCount(tensor); ++i) {
          ASSERT_EQ(of_tensor.contains(i), IsHeld(tensor, i, ranks[rank]))
              << tensor.name << " element " << i << " rank " << rank;
        }
      }
    }
  }
}

TEST_P(MoeTrainerTest, RanksThatAreAlikeHaveEqualManifestsAndOthersHaveNot) {
  const auto sharding = TrainerSharding::Parse(GetParam().sharding);
  ASSERT_TRUE(sharding.ok()) << sharding.status();
  const TestModel model = MakeModel(kQwen3Moe);
  const auto found = FindTensors(model.tensors, model.config);
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<Manifest> manifests;
  for (uint32_t rank = 0; rank < sharding->world(); ++rank) {
    manifests.push_back(*MakeTrainerManifest(*found, model.config, *sharding, rank));
    for (uint32_t other = 0; other < rank; ++other) {
      const bool alike = sharding->FirstLike(rank, true) == sharding->FirstLike(other, true);
      EXPECT_EQ(manifests[rank] == manifests[other], alike) << rank << " and " << other;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MoeTrainerTest, testing::ValuesIn(kHeldCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Rank 1 of two holds two key/value heads, and two query heads for each of them.
void ExpectQkvRows(const char* sharding, const std::vector<std::string>& expected) {
  const TestModel model = MakeModel(kQwen3Moe);
  const auto parsed = TrainerSharding::Parse(sharding);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto manifest = MakeTrainerManifest(model.tensors, model.config, *parsed, 1);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  HeldElements held = FindHeldElements(*manifest);
  std::map<uint64_t, std::string> head_at;
  for (const char* name : {"q", "k", "v"}) {
    const auto& places = held[absl::StrCat("model.layers.0.self_attn.", name, "_proj.weight")];
    for (const auto& [element, offset_bytes] : places) {
      const int64_t row = element / kHidden;
      if (element % kHidden != 0 || row % kHeadDim != 0) continue;
      head_at[offset_bytes] = absl::StrCat(name, row / kHeadDim);
      // The head is dense.
      for (int64_t i = 0; i < kHeadDim * kHidden; ++i) {
        ASSERT_EQ(places.at(element + i), offset_bytes + static_cast<uint64_t>(i) * 2);
      }
    }
  }
  std::vector<std::string> heads;
  uint64_t next = head_at.begin()->first;
  for (const auto& [offset_bytes, head] : head_at) {
    EXPECT_EQ(offset_bytes, next) << head;
    next = offset_bytes + kHeadDim * kHidden * 2;
    heads.push_back(head);
  }
  EXPECT_EQ(heads, expected);
}

TEST(MegatronQkv, IsInterleavedByKeyValueHeads) {
  static_assert(kHeads / kKvHeads == 2);
  ExpectQkvRows("megatron,tp=2", {"q4", "q5", "k2", "v2", "q6", "q7", "k3", "v3"});
}

TEST(MegatronQkv, IsFusedOneBehindTheOther) {
  ExpectQkvRows("megatron,tp=2,qkv=fused", {"q4", "q5", "q6", "q7", "k2", "k3", "v2", "v3"});
}

struct FlatElement {
  std::string tensor;  // Empty: padding.
  int64_t element;
};

// By definition: torch walks the modules, so that a bias follows its weight, and concatenates all
// elements of a unit, of each type apart. Original parameters begin at multiples of 16 bytes.
std::map<std::pair<int64_t, Dtype>, std::vector<FlatElement>> FlatUnits(const TestModel& model,
                                                                        bool original_params) {
  std::map<std::string, const CheckpointTensor*> by_name;
  for (const CheckpointTensor& tensor : model.tensors) by_name[tensor.name] = &tensor;
  std::map<std::pair<int64_t, Dtype>, std::vector<FlatElement>> units;
  const auto add = [&](const CheckpointTensor& tensor) {
    auto& unit = units[{NumberBehind(tensor.name, ".layers."), tensor.dtype}];
    while (original_params && unit.size() * SizeBytes(tensor.dtype) % 16 != 0) {
      unit.push_back({"", 0});
    }
    for (int64_t i = 0; i < ElementCount(tensor); ++i) unit.push_back({tensor.name, i});
  };
  for (const CheckpointTensor& tensor : model.tensors) {
    if (absl::EndsWith(tensor.name, ".bias")) continue;
    add(tensor);
    absl::string_view module = tensor.name;
    if (!absl::ConsumeSuffix(&module, ".weight")) continue;
    const auto bias = by_name.find(absl::StrCat(module, ".bias"));
    if (bias != by_name.end()) add(*bias->second);
  }
  return units;
}

class Fsdp1Test : public testing::TestWithParam<bool> {};

TEST_P(Fsdp1Test, HoldsEqualRangesOfFlatUnits) {
  for (const char* config : {kQwen3Moe, kDeepseekV3, kGptOss}) {
    const TestModel model = MakeModel(config);
    const auto units = FlatUnits(model, GetParam());
    for (const uint32_t fsdp : {1u, 3u, 7u, 64u}) {
      const TrainerSharding sharding{.framework = Framework::kFsdp1,
                                     .fsdp = fsdp,
                                     .replicas = 2,
                                     .original_params = GetParam()};
      for (const uint32_t rank : {0u, fsdp / 2, fsdp - 1}) {
        const auto manifest = MakeTrainerManifest(model.tensors, model.config, sharding, rank);
        ASSERT_TRUE(manifest.ok()) << manifest.status();
        ASSERT_EQ(CheckManifest(*manifest, Holes::kAllowed).message(), "");
        HeldElements held = FindHeldElements(*manifest);
        for (const auto& [key, unit] : units) {
          const auto [begin, end] = Chunk(static_cast<int64_t>(unit.size()), fsdp, rank);
          std::set<uint64_t> starts;  // Where each element says that the range begins.
          for (int64_t i = begin; i < end; ++i) {
            const FlatElement& flat = unit[static_cast<size_t>(i)];
            if (flat.tensor.empty()) continue;
            const auto element = held[flat.tensor].extract(flat.element);
            ASSERT_FALSE(element.empty()) << flat.tensor << " element " << flat.element;
            starts.insert(element.mapped() -
                          static_cast<uint64_t>(i - begin) * SizeBytes(key.second));
          }
          ASSERT_LE(starts.size(), 1u) << "layer " << key.first;
          if (!starts.empty()) {
            EXPECT_EQ(*starts.begin() % 64, 0u);
          }
        }
        for (const auto& [name, others] : held) EXPECT_TRUE(others.empty()) << name;
        EXPECT_EQ(*manifest,
                  *MakeTrainerManifest(model.tensors, model.config, sharding, rank + fsdp));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Params, Fsdp1Test, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "original" : "flat");
});

TEST(UnevenExperts, AreDealtSoThatTheFirstRanksHaveOneMore) {
  const TestModel model = MakeModel(kQwen3Moe);
  std::vector<int> counts;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto manifest = MakeTrainerManifest(model.tensors, model.config,
                                              {.fsdp = 4, .ep = 4, .uneven_experts = true}, rank);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    int count = 0;
    for (uint32_t i = 0; i < manifest->tensor_count(); ++i) {
      const absl::string_view name = manifest->tensor_name(i);
      count += absl::StartsWith(name, "model.layers.0.") && absl::EndsWith(name, ".up_proj.weight");
    }
    counts.push_back(count);
  }
  EXPECT_EQ(counts, (std::vector<int>{2, 2, 1, 1}));
}

struct BadCase {
  const char* name;
  const char* config;
  const char* sharding;
  const char* message;
};

class MoeTrainerRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(MoeTrainerRefusesTest, NamingBothNumbersAndWhatWouldDo) {
  const auto sharding = TrainerSharding::Parse(GetParam().sharding);
  ASSERT_TRUE(sharding.ok()) << sharding.status();
  const TestModel model = MakeModel(GetParam().config);
  const auto manifest = MakeTrainerManifest(model.tensors, model.config, *sharding, 0);
  EXPECT_EQ(manifest.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manifest.status().message(), GetParam().message);
}

constexpr char kDense[] =
    R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 12, "intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 33, "head_dim": 2})";
constexpr char kUnknown[] = R"({"architectures": ["MixtralForCausalLM"]})";

INSTANTIATE_TEST_SUITE_P(
    Cases, MoeTrainerRefusesTest,
    testing::Values(
        BadCase{"experts_that_ep_does_not_divide", kQwen3Moe, "fsdp=4,ep=4",
                "ep=4 does not divide the model's 6 experts; ep may be 1, 2, 3 or 6, or with "
                "experts=uneven any number up to 6"},
        BadCase{"more_ranks_than_experts", kQwen3Moe, "fsdp=8,ep=8,experts=uneven",
                "ep=8 does not divide the model's 6 experts; ep may be 1, 2, 3 or 6, or with "
                "experts=uneven any number up to 6"},
        BadCase{"experts_of_a_dense_model", kDense, "megatron,tp=2,ep=2",
                "ep=2: a model of family qwen3 has no experts"},
        BadCase{"stages_that_do_not_add_up", kQwen3Moe, "megatron,stages=2+2",
                "stages=2+2 hold 4 layers, and the model has 5; the stages have to add up to 5"},
        BadCase{"heads_that_tp_does_not_divide", kQwen3Moe, "megatron,tp=16",
                "tensor \"model.layers.0.self_attn.q_proj.weight\": its 8 heads do not divide by "
                "tp=16; tp may be 1, 2, 4 or 8"},
        BadCase{"rows_of_experts_that_etp_does_not_divide", kQwen3Moe, "megatron,tp=4,dp=3,etp=3",
                "tensor \"model.layers.0.mlp.experts.0.gate_proj.weight\": its 8 rows do not "
                "divide by etp=3; etp may be 1, 2, 4 or 8"},
        BadCase{"an_unknown_architecture", kUnknown, "megatron,tp=2",
                "megatron: which way it cuts the tensors of a generic model is not known "
                "(architecture \"MixtralForCausalLM\" is not one of LlamaForCausalLM, "
                "Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, DeepseekV3ForCausalLM, "
                "Glm4MoeForCausalLM, GptOssForCausalLM, GPT2LMHeadModel)"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
