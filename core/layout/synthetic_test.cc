// SPDX-License-Identifier: Apache-2.0

#include "core/layout/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "core/layout/checkpoint.h"
#include "core/layout/numbered_checkpoint.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

TEST(SyntheticModel, HasAsManyNumbersAsTheRealOne) {
  // The sizes of the published models; GPT-2 without its mask buffers. DeepSeek-V3
  // and GLM-4.5 without the layer that predicts a second token. A byte of gpt-oss holds two.
  const std::map<absl::string_view, int64_t> parameters = {{"gpt2", 124'439'808},
                                                           {"gpt2-medium", 354'823'168},
                                                           {"gpt2-large", 774'030'080},
                                                           {"qwen3-0.6b", 596'049'920},
                                                           {"qwen3-8b", 8'190'735'360},
                                                           {"llama-3.1-8b", 8'030'261'248},
                                                           {"qwen3-30b-a3b", 30'532'122'624},
                                                           {"qwen3-235b-a22b", 235'093'634'560},
                                                           {"deepseek-v3", 671'026'419'200},
                                                           {"kimi-k2", 1'026'408'232'448},
                                                           {"glm-4.5", 352'797'829'024},
                                                           {"gpt-oss-120b", 116'829'156'672}};
  for (const absl::string_view name : SyntheticModelNames()) {
    if (absl::StartsWith(name, "tiny-")) continue;  // Of nothing published.
    const auto model = MakeSyntheticModel(name, std::nullopt);
    ASSERT_TRUE(model.ok()) << model.status();
    int64_t count = 0;
    for (const CheckpointTensor& tensor : model->tensors) {
      if (absl::EndsWith(tensor.name, "_scales")) continue;
      count += ElementCount(tensor) * (tensor.dtype == Dtype::kU8 ? 2 : 1);
    }
    ASSERT_TRUE(parameters.contains(name)) << name;
    EXPECT_EQ(count, parameters.at(name)) << name;
  }
}

TEST(SyntheticModel, NamesWhatThereIs) {
  EXPECT_EQ(MakeSyntheticModel("gpt3", std::nullopt).status().message(),
            "model \"gpt3\" is not one of gpt2, gpt2-medium, gpt2-large, qwen3-0.6b, qwen3-8b, "
            "llama-3.1-8b, qwen3-30b-a3b, qwen3-235b-a22b, deepseek-v3, kimi-k2, glm-4.5, "
            "gpt-oss-120b, tiny-qwen3-moe, tiny-deepseek-v3");
  EXPECT_EQ(MakeSyntheticModel("gpt2", 13).status().message(),
            "model \"gpt2\": 13 layers, allowed are 1 to 12");
  EXPECT_EQ(MakeSyntheticModel("gpt2", 0).status().message(),
            "model \"gpt2\": 0 layers, allowed are 1 to 12");
}

std::vector<std::byte> Fill(uint64_t seed, absl::string_view name, Dtype dtype, size_t size,
                            uint64_t offset_bytes = 0) {
  std::vector<std::byte> bytes(size);
  FillSynthetic(seed, {.name = std::string(name), .dtype = dtype}, offset_bytes,
                absl::MakeSpan(bytes));
  return bytes;
}

TEST(FillSynthetic, DependsOnSeedAndNameAndOnNothingElse) {
  const auto whole = Fill(7, "a", Dtype::kBf16, 1003);
  EXPECT_EQ(Fill(7, "a", Dtype::kBf16, 1003), whole);
  EXPECT_NE(Fill(8, "a", Dtype::kBf16, 1003), whole);
  EXPECT_NE(Fill(7, "b", Dtype::kBf16, 1003), whole);
  const auto tail = Fill(7, "a", Dtype::kBf16, 603, 400);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), whole.begin() + 400));
}

TEST(FillSynthetic, GivesFiniteNumbersOfBothSigns) {
  const auto bf16 = Fill(1, "a", Dtype::kBf16, 1 << 16);
  const auto f32 = Fill(1, "a", Dtype::kF32, 1 << 16);
  std::set<float> values;
  for (size_t i = 0; i < bf16.size(); i += 2) {
    uint16_t upper;
    std::memcpy(&upper, bf16.data() + i, sizeof(upper));
    values.insert(std::bit_cast<float>(uint32_t{upper} << 16));
  }
  EXPECT_GT(values.size(), 900u);  // There are 2 signs, 4 exponents and 128 mantissas.
  for (size_t i = 0; i < f32.size(); i += 4) {
    float value;
    std::memcpy(&value, f32.data() + i, sizeof(value));
    values.insert(value);
  }
  for (const float value : values) {
    ASSERT_GE(std::abs(value), 1.0F / 128);
    ASSERT_LT(std::abs(value), 1.0F / 8);
  }
  EXPECT_LT(*values.begin(), 0);
  EXPECT_GT(*values.rbegin(), 0);
}

TEST(WriteSyntheticCheckpoint, MakesWhatBothSidesRead) {
  const std::string directory = FreshDirectory("model");
  const absl::Status written = WriteSyntheticCheckpoint("gpt2", 1, 3, directory);
  ASSERT_TRUE(written.ok()) << written;
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->config().family_name(), "gpt2");
  EXPECT_EQ(checkpoint->config().layers, 1);
  const CheckpointTensor* norm = checkpoint->Find("transformer.h.0.ln_1.weight");
  ASSERT_NE(norm, nullptr);
  const auto expected = Fill(3, norm->name, Dtype::kF32, 768 * 4);
  EXPECT_EQ(norm->data, absl::MakeConstSpan(expected));
  const auto trainer =
      MakeTrainerManifest(checkpoint->tensors(), checkpoint->config(), {.fsdp = 2, .tp = 2}, 1);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ(CheckManifest(*trainer, Holes::kAllowed).message(), "");
  const auto worker = MakeWorkerLayout(checkpoint->tensors(), checkpoint->config(), {.tp = 2}, 1,
                                       {.dtype = Dtype::kBf16, .quantisation = {}});
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(CheckManifest(worker->manifest, Holes::kRefused).message(), "");
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace waybill
