// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/manifest_codec.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/deflate.h"
#include "core/base/sha256.h"
#include "core/tensor/manifest.h"
#include "core/tensor/manifest.pb.h"

namespace waybill {
namespace {

Manifest Sample() {
  Manifest m;
  m.set_host("node-7");
  m.set_rack("leaf-2");
  m.nics().push_back(
      {.name = "mlx5_0", .rail = 1, .numa_node = 0, .bytes_per_second = 50'000'000'000});
  m.AddRegion("weights", 4096);
  const uint32_t embed = m.AddTensor("model.embed_tokens.weight", {16, 8}, Dtype::kBf16);
  const uint32_t scale = m.AddTensor("scale", {}, Dtype::kF32);
  m.AddShard(embed, {Dtype::kBf16}, Box({8, 0}, {16, 8}), {0, 64, {1, 8}});
  m.AddShard(scale, {Dtype::kF32}, Box(), {0, 0, {}});
  m.AddPadding(2, {3, 8}, {0, 512, {8, 1}});
  m.AddAlias("lm_head.weight", embed);
  return m;
}

// Return what comes of decoding a manifest after a change to one of its parts.
template <typename Change>
absl::Status WithHoldings(const Manifest& manifest, Change change) {
  const EncodedManifest encoded = EncodeInParts(manifest);
  proto::Holdings holdings;
  EXPECT_TRUE(holdings.ParseFromString(encoded.holdings));
  change(holdings);
  return DecodeHoldings(holdings.SerializeAsString(), *DecodeTensors(encoded.tensors)).status();
}

template <typename Change>
absl::Status WithTensors(const Manifest& manifest, Change change) {
  proto::Tensors tensors;
  EXPECT_TRUE(tensors.ParseFromString(EncodeInParts(manifest).tensors));
  change(tensors);
  return DecodeTensors(tensors.SerializeAsString()).status();
}

TEST(ManifestCodec, WhatIsDecodedIsWhatWasEncoded) {
  EXPECT_EQ(*DecodeManifest(EncodeManifest(Sample())), Sample());
  EXPECT_EQ(*DecodeManifest(EncodeManifest(Manifest())), Manifest());
}

TEST(ManifestCodec, QuantisedShardsComeBackWithAllFieldsOfTheirQuantisation) {
  const Quantisation odd = {.dtype = Dtype::kF8E5m2,
                            .from = Dtype::kF32,
                            .scale_dtype = Dtype::kE8m0,
                            .rounding = ScaleRounding::kPowerOfTwoUp,
                            .division = Division::kDivide,
                            .stores_reciprocal = true,
                            .epsilon = 1e-10f,
                            .block_rows = 128,
                            .block_columns = 64,
                            .scale_rows = 64,
                            .scale_columns = 32};
  Manifest m = Sample();
  m.AddShard(0, Format::Quantised({}), Box({0, 0}, {8, 8}), {0, 1024, {8, 1}});
  m.AddShard(0, Format::Scales({}), Box({0, 0}, {1, 1}), {0, 2048, {1, 1}});
  m.AddShard(0, Format::Quantised(odd), Box({8, 0}, {16, 8}), {0, 3072, {8, 1}});
  EXPECT_EQ(*DecodeManifest(EncodeManifest(m)), m);

  EXPECT_EQ(WithHoldings(m, [](auto& h) { h.set_shard_quantisations(2, 7); }).message(),
            "manifest: shard 2: content 1, quantisation 7 of 2");
}

TEST(ManifestCodec, AnEnginesOwnOrderComesBackWithItsShard) {
  Manifest m = Sample();
  m.AddShard(0, Format::Scales({}), Box({0, 0}, {1, 1}), {0, 2048, {1, 1}, "deepgemm-ue8m0"});
  m.AddShard(0, {Dtype::kBf16}, Box({0, 0}, {8, 8}), {0, 1024, {8, 1}});
  m.AddShard(0, {Dtype::kBf16}, Box({0, 0}, {8, 8}), {0, 3072, {8, 1}, "marlin"});
  const auto decoded = DecodeManifest(EncodeManifest(m));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, m);
  EXPECT_EQ(decoded->shard(2).place.engine_order, "deepgemm-ue8m0");
  EXPECT_EQ(decoded->shard(3).place.engine_order, "");
  EXPECT_EQ(decoded->shard(4).place.engine_order, "marlin");

  EXPECT_EQ(WithHoldings(m, [](auto& h) { h.set_ordered_shards(1, 2); }).message(),
            "manifest: engine order \"marlin\" of shard 2 of 5: empty, given twice, or of none");
  EXPECT_EQ(WithHoldings(m, [](auto& h) { h.set_ordered_shards(1, 5); }).message(),
            "manifest: engine order \"marlin\" of shard 5 of 5: empty, given twice, or of none");
}

// Another encoding is another schema version.
TEST(ManifestCodec, BytesAreThoseOfTheGoldenFile) {
  std::ifstream file("core/tensor/golden/manifest_v6.binpb", std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
  const std::string encoded = EncodeManifest(Sample());
  if (const char* out = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR")) {
    std::ofstream(std::string(out) + "/manifest_v6.binpb", std::ios::binary) << encoded;
  }
  EXPECT_EQ(encoded, golden);
  const auto decoded = DecodeManifest(golden);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Sample());
}

TEST(ManifestCodec, RefusesWhatItCannotBelieve) {
  EXPECT_EQ(DecodeManifest("\xFFnonsense").status().message(),
            "manifest: 9 bytes are not its encoding");

  proto::Manifest newer;
  ASSERT_TRUE(newer.ParseFromString(EncodeManifest(Sample())));
  newer.set_schema_version(7);
  EXPECT_EQ(DecodeManifest(newer.SerializeAsString()).status().message(),
            "manifest: schema version 7, this program knows 6");

  EXPECT_EQ(WithHoldings(Sample(), [](auto& h) { h.add_shard_offset_steps(1); }).message(),
            "manifest: table of shards: columns of 2 and 3 rows");
  EXPECT_EQ(WithTensors(Sample(), [](auto& t) { t.mutable_shapes()->set_lengths(0, 9); }).message(),
            "manifest: table of tensors: an item of length 9, at most 8");
  EXPECT_EQ(WithTensors(Sample(), [](auto& t) { t.mutable_shapes()->set_lengths(0, 3); }).message(),
            "manifest: table of tensors: items of 3 in all, in an array of 2");
  EXPECT_EQ(WithTensors(Sample(), [](auto& t) { t.set_dtypes(0, 99); }).message(),
            "dtype number 99 is not one of 1 to 16");
}

TEST(ManifestCodec, PartsAreEqualWhereRanksShareThem) {
  Manifest other = Sample();
  other.set_host("node-8");
  const EncodedManifest a = EncodeInParts(Sample()), b = EncodeInParts(other);
  EXPECT_NE(a.head, b.head);
  EXPECT_EQ(a.tensors, b.tensors);
  EXPECT_EQ(a.holdings, b.holdings);

  other.AddPadding(2, {1}, {0, 640, {1}});
  const EncodedManifest c = EncodeInParts(other);
  EXPECT_EQ(c.tensors, a.tensors);
  EXPECT_NE(DecodeHead(c.head)->holdings, DecodeHead(a.head)->holdings);
  EXPECT_EQ(DecodeHead(c.head)->holdings, Sha256(c.holdings));
}

TEST(ManifestCodec, WhatIsDecodedFromTheSameTensorsSharesThem) {
  const EncodedManifest encoded = EncodeInParts(Sample());
  const Manifest tensors = *DecodeTensors(encoded.tensors);
  const Manifest a = *DecodeHoldings(encoded.holdings, tensors);
  EXPECT_EQ(a.tensor_name(0).data(), tensors.tensor_name(0).data());
  EXPECT_TRUE(a.HoldsTheSame(Sample()));
}

// A rank of a large model: what is regular takes next to nothing.
TEST(ManifestCodec, RegularShardsCompressToLessThanAByteEach) {
  Manifest m;
  const int shards = 30000;
  for (int i = 0; i < shards; ++i) {
    m.AddTensor("t", {i % 3 == 2 ? 7168 : 2048, i % 3 == 2 ? 2048 : 7168}, Dtype::kBf16);
    const int64_t rows = i % 3 == 2 ? 224 : 64, columns = i % 3 == 2 ? 2048 : 7168;
    m.AddShard(static_cast<uint32_t>(i), {Dtype::kBf16}, Box({rows * 5, 0}, {rows * 6, columns}),
               {0, static_cast<uint64_t>(i) * 917504, {columns, 1}});
  }
  EXPECT_LT(Deflate(EncodeInParts(m).holdings).size(), shards / 4);
}

// Each tensor has a region of its own, as torch's parameters have, and its scales have another.
Manifest RankOfKimiK2() {
  Manifest m;
  uint64_t random = 1;
  for (uint32_t i = 0; i < 140'000; ++i) {
    const std::string name = absl::StrCat("model.layers.", i / 2304, ".mlp.experts.", i / 6 % 384,
                                          i % 3 == 0 ? ".down_proj." : ".gate_proj.", i);
    for (const bool scales : {false, true}) {
      const int64_t rows = scales ? 16 : 2048, columns = scales ? 56 : 7168;
      const std::string full = absl::StrCat(name, scales ? ".weight_scale_inv" : ".weight");
      random = random * 6364136223846793005 + 1442695040888963407;
      const uint64_t offset = random >> 40;
      const uint32_t region = m.AddRegion(full, offset + static_cast<uint64_t>(rows * columns));
      m.AddShard(m.AddTensor(full, {rows * 32, columns}, Dtype::kF8E4m3), {Dtype::kF8E4m3},
                 Box({rows * 5, 0}, {rows * 6, columns}), {region, offset, {columns, 1}});
    }
  }
  return m;
}

TEST(ManifestCodec, ARankOfALargeModelHasLessThanHalfOfWhatAPartMayHave) {
  const EncodedManifest encoded = EncodeInParts(RankOfKimiK2());
  EXPECT_LT(encoded.tensors.size(), kMostPartBytes / 2);
  EXPECT_LT(encoded.holdings.size(), kMostPartBytes / 2);
  const auto tensors = DecodeTensors(encoded.tensors);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_TRUE(DecodeHoldings(encoded.holdings, *tensors).ok());
}

TEST(ManifestCodec, APartIsRefusedBeforeItTakesFarMoreMemoryThanItHasBytes) {
  proto::Tensors tensors;
  for (size_t i = 0; i <= kMostNumbersOfPart; ++i) tensors.add_dtypes(1);
  EXPECT_EQ(DecodeTensors(tensors.SerializeAsString()).status().message(),
            "manifest: a part of 10000002 numbers, at most 10000000 are taken");
  proto::Holdings holdings;
  holdings.mutable_region_names()->mutable_lengths()->Resize(kMostNumbersOfPart, 0);
  holdings.mutable_shard_ends()->add_data(1);
  EXPECT_EQ(DecodeHoldings(holdings.SerializeAsString(), {}).status().message(),
            "manifest: a part of 10000005 numbers, at most 10000000 are taken");
  holdings.Clear();
  holdings.mutable_region_names()->set_data(std::string(kMostPartBytes, 'n'));
  EXPECT_EQ(DecodeHoldings(holdings.SerializeAsString(), {}).status().message(),
            "manifest: a part of 50331658 bytes, at most 50331648 are taken");
  holdings.mutable_region_names()->mutable_data()->resize(kMostPartBytes / 2);  // No numbers.
  EXPECT_EQ(DecodeHoldings(holdings.SerializeAsString(), {}).status().message(),
            "manifest: table of regions: items of 0 in all, in an array of 25165824");
}

TEST(ManifestCodec, EveryTruncationIsAnErrorOrAManifest) {
  const std::string bytes = EncodeManifest(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    (void)DecodeManifest(bytes.substr(0, size));  // The sanitizers watch.
  }
}

}  // namespace
}  // namespace waybill
