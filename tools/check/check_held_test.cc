// SPDX-License-Identifier: Apache-2.0

#include "tools/check/check_held.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/check/change.h"

namespace waybill::check {
namespace {

using testing::HasSubstr;

constexpr char kLlama[] = R"({"model_type": "llama", "hidden_size": 4, "head_dim": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 6})";
constexpr char kDeepseek[] = R"({"model_type": "deepseek_v3", "hidden_size": 4,
    "num_attention_heads": 2, "intermediate_size": 6, "moe_intermediate_size": 4,
    "n_shared_experts": 1, "n_routed_experts": 2})";
constexpr char kGpt2[] = R"({"model_type": "gpt2"})";
constexpr char kNoConfig[] = "";

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;

  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t extent : shape) product *= extent;
    return product;
  }
};

// Every tensor of the cases below; each family uses its own.
const Tensor kTensors[] = {
    {"model.embed_tokens.weight", {70, 4}},
    {"model.norm.weight", {4}},
    {"model.layers.0.self_attn.q_proj.weight", {8, 4}},
    {"model.layers.0.self_attn.k_proj.weight", {4, 4}},
    {"model.layers.0.self_attn.v_proj.weight", {4, 4}},
    {"model.layers.0.self_attn.q_proj.bias", {8}},
    {"model.layers.0.self_attn.k_proj.bias", {4}},
    {"model.layers.0.self_attn.v_proj.bias", {4}},
    {"model.layers.0.self_attn.o_proj.weight", {4, 8}},
    {"model.layers.0.mlp.gate_proj.weight", {6, 4}},
    {"model.layers.0.mlp.up_proj.weight", {6, 4}},
    {"model.layers.0.mlp.down_proj.weight", {4, 6}},
    {"wte.weight", {70, 4}},
    {"wpe.weight", {3, 4}},
    {"h.0.attn.c_attn.weight", {4, 12}},
    {"h.0.attn.c_attn.bias", {12}},
    {"h.0.mlp.c_fc.weight", {4, 16}},
    {"h.0.mlp.c_fc.bias", {16}},
    {"h.0.mlp.c_proj.weight", {16, 4}},
    {"h.0.mlp.c_proj.bias", {4}},
    {"model.layers.0.self_attn.q_a_proj.weight", {3, 4}},
    {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", {2, 4}},
    {"model.layers.0.self_attn.kv_b_proj.weight", {8, 2}},
    {"model.layers.0.mlp.gate.weight", {2, 4}},
    {"model.layers.0.mlp.shared_experts.gate_proj.weight", {4, 4}},
    {"model.layers.0.mlp.shared_experts.up_proj.weight", {4, 4}},
    {"model.layers.0.mlp.experts.0.gate_proj.weight", {4, 4}},
    {"model.layers.0.mlp.experts.0.up_proj.weight", {4, 4}},
    {"model.layers.0.mlp.experts.0.down_proj.weight", {4, 4}},
    {"model.layers.0.mlp.experts.1.gate_proj.weight", {4, 4}},
    {"model.layers.0.mlp.experts.1.up_proj.weight", {4, 4}},
    {"model.layers.0.mlp.experts.1.down_proj.weight", {4, 4}},
    {"stacked", {5, 2, 3}},
    {"scalar", {}},
};

// Element `i` of tensor `t` in version 0; all 2-byte values differ beyond the bits that change.
uint16_t Value(size_t t, int64_t i) { return static_cast<uint16_t>(((t + 1) << 11) + i); }

std::string WriteFile(const std::string& config, const std::string& header,
                      const std::string& data) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  std::string folder =
      absl::StrCat(testing::TempDir(), "/", test.test_suite_name(), ".", test.name());
  for (char& c : folder.replace(0, testing::TempDir().size(), "")) c = c == '/' ? '_' : c;
  folder = testing::TempDir() + "/" + folder;
  std::filesystem::create_directories(folder);
  if (!config.empty()) std::ofstream(folder + "/config.json") << config;
  const uint64_t header_bytes = header.size();
  std::ofstream file(folder + "/model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), 8);
  file << header << data;
  return folder;
}

std::unique_ptr<StoredCheckpoint> Open(const std::string& folder) {
  auto opened = StoredCheckpoint::Open(folder);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

std::unique_ptr<StoredCheckpoint> OpenBf16(const std::string& config) {
  std::string header = "{", data;
  for (size_t t = 0; t < std::size(kTensors); ++t) {
    const size_t begin = data.size();
    for (int64_t i = 0; i < kTensors[t].elements(); ++i) {
      const uint16_t value = Value(t, i);
      data.append(reinterpret_cast<const char*>(&value), 2);
    }
    std::string shape;
    for (const int64_t extent : kTensors[t].shape) {
      absl::StrAppend(&shape, shape.empty() ? "" : ",", extent);
    }
    absl::StrAppend(&header, t == 0 ? "" : ",", "\"", kTensors[t].name,
                    "\":{\"dtype\":\"BF16\",\"shape\":[", shape, "],\"data_offsets\":[", begin, ",",
                    data.size(), "]}");
  }
  return Open(WriteFile(config, header + "}", data));
}

// The source of one element of a parameter; no tensor: padding.
struct Source {
  std::string tensor;
  int64_t element = 0;
};

struct HeldCase {
  const char* name;
  const char* config;
  const char* parameter;
  std::vector<int64_t> shape;
  int64_t tp, tp_rank;
  // From row and column; a vector has rows of one column, as a stack has rows of its last
  // dimension.
  std::function<Source(int64_t, int64_t)> source;
  int64_t dp = 1, ep = 1;
  bool sglang = false;
};

#define ATTN "model.layers.0.self_attn."
#define MLP "model.layers.0.mlp."

const HeldCase kCases[] = {
    // name, config, parameter, shape, tp, rank, source
    {"qkv",
     kLlama,
     ATTN "qkv_proj.weight",
     {8, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source {
       if (r < 4) return {ATTN "q_proj.weight", (4 + r) * 4 + c};
       if (r < 6) return {ATTN "k_proj.weight", (r - 2) * 4 + c};
       return {ATTN "v_proj.weight", (r - 4) * 4 + c};
     }},
    {"qkv_repeats_heads_where_ranks_are_more",
     kLlama,
     ATTN "qkv_proj.weight",
     {6, 4},
     4,
     3,
     [](int64_t r, int64_t c) -> Source {
       if (r < 2) return {ATTN "q_proj.weight", (6 + r) * 4 + c};
       if (r < 4) return {ATTN "k_proj.weight", r * 4 + c};
       return {ATTN "v_proj.weight", (r - 2) * 4 + c};
     }},
    {"qkv_bias",
     kLlama,
     ATTN "qkv_proj.bias",
     {8},
     2,
     1,
     [](int64_t r, int64_t) -> Source {
       if (r < 4) return {ATTN "q_proj.bias", 4 + r};
       if (r < 6) return {ATTN "k_proj.bias", r - 2};
       return {ATTN "v_proj.bias", r - 4};
     }},
    {"gate_up",
     kLlama,
     MLP "gate_up_proj.weight",
     {6, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source {
       if (r < 3) return {MLP "gate_proj.weight", (3 + r) * 4 + c};
       return {MLP "up_proj.weight", r * 4 + c};
     }},
    {"o_proj",
     kLlama,
     ATTN "o_proj.weight",
     {4, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source { return {ATTN "o_proj.weight", r * 8 + 4 + c}; }},
    {"down_proj",
     kLlama,
     MLP "down_proj.weight",
     {4, 3},
     2,
     1,
     [](int64_t r, int64_t c) -> Source { return {MLP "down_proj.weight", r * 6 + 3 + c}; }},
    {"vocabulary_ends_in_padding",
     kLlama,
     "model.embed_tokens.weight",
     {64, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source {
       if (r >= 6) return {};
       return {"model.embed_tokens.weight", (64 + r) * 4 + c};
     }},
    {"latent_attention_is_fused_whole",
     kDeepseek,
     ATTN "fused_qkv_a_proj.weight",
     {5, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source {
       if (r < 3) return {ATTN "q_a_proj.weight", r * 4 + c};
       return {ATTN "kv_a_proj_with_mqa.weight", (r - 3) * 4 + c};
     }},
    {"latent_keys_are_cut_by_heads",
     kDeepseek,
     ATTN "kv_b_proj.weight",
     {4, 2},
     2,
     1,
     [](int64_t r, int64_t c) -> Source { return {ATTN "kv_b_proj.weight", (4 + r) * 2 + c}; }},
    {"cut_experts_are_stacked",
     kDeepseek,
     MLP "experts.routed_experts.w13_weight",
     {2, 4, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source {
       const std::string expert = r < 4 ? MLP "experts.0." : MLP "experts.1.";
       return {expert + (r % 4 < 2 ? "gate_proj.weight" : "up_proj.weight"), (2 + r % 2) * 4 + c};
     }},
    {"columns_of_cut_experts",
     kDeepseek,
     MLP "experts.w2_weight",
     {2, 4, 2},
     1,
     1,
     [](int64_t r, int64_t c) -> Source {
       return {r < 4 ? MLP "experts.0.down_proj.weight" : MLP "experts.1.down_proj.weight",
               r % 4 * 4 + 2 + c};
     },
     /*dp=*/2},
    {"whole_experts",
     kDeepseek,
     MLP "experts.routed_experts.w13_weight",
     {1, 8, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source {
       return {r < 4 ? MLP "experts.1.gate_proj.weight" : MLP "experts.1.up_proj.weight",
               r % 4 * 4 + c};
     },
     /*dp=*/1,
     /*ep=*/2},
    {"sglang_cuts_shared_experts_over_the_engine",
     kDeepseek,
     MLP "shared_experts.gate_up_proj.weight",
     {4, 4},
     1,
     1,
     [](int64_t r, int64_t c) -> Source {
       return {r < 2 ? MLP "shared_experts.gate_proj.weight" : MLP "shared_experts.up_proj.weight",
               (2 + r % 2) * 4 + c};
     },
     /*dp=*/2,
     /*ep=*/1,
     /*sglang=*/true},
    {"router",
     kDeepseek,
     MLP "gate.weight",
     {2, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source { return {MLP "gate.weight", r * 4 + c}; }},
    {"norm",
     kLlama,
     "model.norm.weight",
     {4},
     2,
     1,
     [](int64_t r, int64_t) -> Source { return {"model.norm.weight", r}; }},
    {"c_attn",
     kGpt2,
     "transformer.h.0.attn.c_attn.weight",
     {6, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source {
       const int64_t output[] = {2, 3, 6, 7, 10, 11};
       return {"h.0.attn.c_attn.weight", c * 12 + output[r]};
     }},
    {"c_attn_bias",
     kGpt2,
     "transformer.h.0.attn.c_attn.bias",
     {6},
     2,
     1,
     [](int64_t r, int64_t) -> Source {
       const int64_t output[] = {2, 3, 6, 7, 10, 11};
       return {"h.0.attn.c_attn.bias", output[r]};
     }},
    {"c_fc",
     kGpt2,
     "transformer.h.0.mlp.c_fc.weight",
     {8, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source { return {"h.0.mlp.c_fc.weight", c * 16 + 8 + r}; }},
    {"c_fc_bias",
     kGpt2,
     "transformer.h.0.mlp.c_fc.bias",
     {8},
     2,
     1,
     [](int64_t r, int64_t) -> Source { return {"h.0.mlp.c_fc.bias", 8 + r}; }},
    {"c_proj",
     kGpt2,
     "transformer.h.0.mlp.c_proj.weight",
     {4, 8},
     2,
     1,
     [](int64_t r, int64_t c) -> Source { return {"h.0.mlp.c_proj.weight", (8 + c) * 4 + r}; }},
    {"c_proj_bias",
     kGpt2,
     "transformer.h.0.mlp.c_proj.bias",
     {4},
     2,
     1,
     [](int64_t r, int64_t) -> Source { return {"h.0.mlp.c_proj.bias", r}; }},
    {"wpe",
     kGpt2,
     "transformer.wpe.weight",
     {3, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source { return {"wpe.weight", r * 4 + c}; }},
    {"wte",
     kGpt2,
     "transformer.wte.weight",
     {64, 4},
     2,
     1,
     [](int64_t r, int64_t c) -> Source {
       if (r >= 6) return {};
       return {"wte.weight", (64 + r) * 4 + c};
     }},
    {"generic_rows",
     kNoConfig,
     "stacked",
     {2, 2, 3},
     2,
     1,
     [](int64_t r, int64_t c) -> Source { return {"stacked", 18 + r * 3 + c}; }},
    {"scalar",
     kNoConfig,
     "scalar",
     {},
     2,
     1,
     [](int64_t, int64_t) -> Source { return {"scalar", 0}; }},
};

#undef ATTN
#undef MLP

std::vector<uint16_t> Held(const HeldCase& c, uint64_t version, int64_t columns, int64_t rows) {
  std::vector<uint16_t> held;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const Source source = c.source(i / columns, i % columns);
    uint16_t value = 0;
    for (size_t t = 0; t < std::size(kTensors); ++t) {
      if (kTensors[t].name != source.tensor) continue;
      const uint32_t change = Change(KeyOf({version}, source.tensor), source.element);
      value = Value(t, source.element) ^ static_cast<uint16_t>(change & BitsThatChange(2));
    }
    held.push_back(value);
  }
  return held;
}

class CheckHeldTest : public testing::TestWithParam<HeldCase> {};

TEST_P(CheckHeldTest, FindsEverySingleWrongElement) {
  const HeldCase& c = GetParam();
  const auto checkpoint = OpenBf16(c.config);
  const int64_t columns = c.shape.size() > 1 ? c.shape.back() : 1;
  const int64_t elements = Tensor{"", c.shape}.elements();
  std::vector<uint16_t> held = Held(c, /*version=*/3, columns, elements / columns);
  const HeldParameter parameter{.name = c.parameter,
                                .dtype = "BF16",
                                .shape = c.shape,
                                .data = reinterpret_cast<const std::byte*>(held.data())};
  const auto check = [&](uint64_t version) {
    return CheckHeld(*checkpoint, {&parameter, 1}, {version},
                     {.tp = c.tp, .dp = c.dp, .ep = c.ep, .rank = c.tp_rank, .sglang = c.sglang});
  };
  const auto right = check(3);
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(*right, static_cast<uint64_t>(elements));
  EXPECT_EQ(check(4).status().code(), absl::StatusCode::kDataLoss) << "another version's";
  for (int64_t i = 0; i < elements; ++i) {
    held[i] ^= 1;
    const absl::Status wrong = check(3).status();
    held[i] ^= 1;
    ASSERT_EQ(wrong.code(), absl::StatusCode::kDataLoss) << "element " << i;
    ASSERT_THAT(std::string(wrong.message()),
                HasSubstr(absl::StrCat("parameter \"", c.parameter, "\" row ", i / columns,
                                       " column ", i % columns, " is 0x")));
  }
}

INSTANTIATE_TEST_SUITE_P(Parameters, CheckHeldTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(CheckHeld, RefusesAParameterThatTheCheckpointLacks) {
  const auto checkpoint = OpenBf16(kLlama);
  const HeldParameter parameter{.name = "model.other.weight", .dtype = "BF16", .shape = {4}};
  const absl::Status status = CheckHeld(*checkpoint, {&parameter, 1}, {}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"model.other.weight\""));
}

TEST(CheckHeld, F32HeldAsBf16IsRoundedToTheNearestEven) {
  // Below half, half onto even from below and from above, above half, and up to another exponent.
  const uint32_t stored[] = {0x3F80'7FFF, 0x3F80'8000, 0x3F81'8000, 0x3F80'8001, 0xBFFF'FFFF};
  uint16_t held[] = {0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC000};
  const auto checkpoint =
      Open(WriteFile(kNoConfig, R"({"w":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}})",
                     std::string(reinterpret_cast<const char*>(stored), sizeof(stored))));
  const HeldParameter parameter{
      .name = "w", .dtype = "BF16", .shape = {5}, .data = reinterpret_cast<const std::byte*>(held)};
  const auto right = CheckHeld(*checkpoint, {&parameter, 1}, {}, {});
  EXPECT_TRUE(right.ok()) << right.status();
  held[1] = 0x3F81;  // Rounded up.
  EXPECT_EQ(CheckHeld(*checkpoint, {&parameter, 1}, {}, {}).status().message(),
            "version 0: parameter \"w\" row 1 column 0 is 0x3f81, should be 0x3f80");
}

}  // namespace
}  // namespace waybill::check
