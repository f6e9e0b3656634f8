// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/verbatim.h"

#include <gtest/gtest.h>

#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

// A matrix, quantised, with its scales behind it.
Manifest Served(const Quantisation& quantisation) {
  Manifest manifest;
  manifest.set_host("h");
  manifest.set_rack("r");
  manifest.nics() = {{"mlx5_0", 1, 0, 50}};
  manifest.AddRegion("weights", 256 * 256 + 16);
  const uint32_t w = manifest.AddTensor("w", {256, 256}, Dtype::kBf16);
  manifest.AddShard(w, Format::Quantised(quantisation), Box({0, 0}, {256, 256}), {0, 0, {256, 1}});
  manifest.AddShard(w, Format::Scales(quantisation), Box({0, 0}, {2, 2}), {0, 256 * 256, {2, 1}});
  return manifest;
}

TEST(Verbatim, QuantisedElementsAndScalesAreTensorsOfTheirOwn) {
  const Manifest verbatim = Verbatim(Served({}));
  EXPECT_EQ(CheckManifest(verbatim, Holes::kRefused).message(), "");
  EXPECT_FALSE(verbatim.has_quantised());
  ASSERT_EQ(verbatim.shard_count(), 2u);
  const ShardView elements = verbatim.shard(0), scales = verbatim.shard(1);
  EXPECT_EQ(elements.format, Format{Dtype::kF8E4m3});
  EXPECT_EQ(scales.format, Format{Dtype::kF32});
  EXPECT_EQ(scales.place.offset_bytes, 256u * 256u);
  EXPECT_NE(elements.tensor_index, scales.tensor_index);
  EXPECT_EQ(verbatim.tensor_shape(scales.tensor_index), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(verbatim.host(), "h");
  EXPECT_EQ(verbatim.rack(), "r");
  EXPECT_EQ(verbatim.nics().size(), 1u);
}

TEST(Verbatim, PlainShardsStayAsTheyAre) {
  Manifest manifest;
  manifest.AddRegion("weights", 64);
  manifest.AddShard(manifest.AddTensor("w", {4, 8}, Dtype::kBf16), {Dtype::kBf16},
                    Box({0, 0}, {4, 8}), {0, 0, {1, 4}});
  EXPECT_EQ(Verbatim(manifest), manifest);
}

// What was quantised another way is not the same bytes.
TEST(Verbatim, EveryPropertyOfAQuantisationTellsTensorsApart) {
  const auto name = [](const Quantisation& quantisation) {
    const Manifest verbatim = Verbatim(Served(quantisation));
    return std::string(verbatim.tensor_name(verbatim.shard(0).tensor_index));
  };
  const std::string usual = name({});
  EXPECT_EQ(usual, name({}));
  EXPECT_NE(usual, name({.from = Dtype::kF32}));
  EXPECT_NE(usual, name({.rounding = ScaleRounding::kPowerOfTwoUp}));
  EXPECT_NE(usual, name({.division = Division::kDivide}));
  EXPECT_NE(usual, name({.stores_reciprocal = true}));
  EXPECT_NE(usual, name({.epsilon = 1e-6f}));
  EXPECT_NE(usual, name({.scale_rows = 64}));
}

}  // namespace
}  // namespace waybill
