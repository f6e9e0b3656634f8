#include "core/tensor/manifest_codec.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "core/tensor/manifest.h"
#include "core/tensor/manifest.pb.h"

namespace waybill {
namespace {

Manifest Sample() {
  Manifest m;
  m.set_host("node-7");
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

  proto::Manifest wrong;
  ASSERT_TRUE(wrong.ParseFromString(EncodeManifest(m)));
  wrong.set_shard_quantisations(2, 7);
  EXPECT_EQ(DecodeManifest(wrong.SerializeAsString()).status().message(),
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

  proto::Manifest wrong;
  ASSERT_TRUE(wrong.ParseFromString(EncodeManifest(m)));
  EXPECT_EQ(wrong.schema_version(),
            3u);  // A reader without orders refuses it instead of ignoring it.
  wrong.set_ordered_shards(1, 2);
  EXPECT_EQ(DecodeManifest(wrong.SerializeAsString()).status().message(),
            "manifest: engine order \"marlin\" of shard 2 of 5: empty, given twice, or of none");
  wrong.set_ordered_shards(1, 5);
  EXPECT_EQ(DecodeManifest(wrong.SerializeAsString()).status().message(),
            "manifest: engine order \"marlin\" of shard 5 of 5: empty, given twice, or of none");
}

// The first version's bytes stay readable, and stay what is written.
TEST(ManifestCodec, BytesAreThoseOfTheGoldenFile) {
  std::ifstream file("core/tensor/golden/manifest_v1.binpb", std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
  const std::string encoded = EncodeManifest(Sample());
  if (const char* out = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR")) {
    std::ofstream(std::string(out) + "/manifest_v1.binpb", std::ios::binary) << encoded;
  }
  EXPECT_EQ(encoded, golden);
  const auto decoded = DecodeManifest(golden);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Sample());
}

TEST(ManifestCodec, RefusesWhatItCannotBelieve) {
  EXPECT_EQ(DecodeManifest("\xFFnonsense").status().message(),
            "manifest: 9 bytes are not its encoding");

  proto::Manifest m;
  ASSERT_TRUE(m.ParseFromString(EncodeManifest(Sample())));
  proto::Manifest newer = m;
  newer.set_schema_version(4);
  EXPECT_EQ(DecodeManifest(newer.SerializeAsString()).status().message(),
            "manifest: schema version 4, this program knows 1 to 3");

  proto::Manifest uneven = m;
  uneven.add_shard_offsets(1);
  EXPECT_EQ(DecodeManifest(uneven.SerializeAsString()).status().message(),
            "manifest: table of shards: columns of 2 and 3 rows");

  proto::Manifest wild = m;
  wild.mutable_tensor_shapes()->set_ends(0, 1000);
  EXPECT_EQ(DecodeManifest(wild.SerializeAsString()).status().message(),
            "manifest: table of tensors: item [0, 1000) of 2, at most 8 long");

  proto::Manifest odd = m;
  odd.set_tensor_dtypes(0, 99);
  EXPECT_EQ(DecodeManifest(odd.SerializeAsString()).status().message(),
            "dtype number 99 is not known");
}

TEST(ManifestCodec, EveryTruncationIsAnErrorOrAManifest) {
  const std::string bytes = EncodeManifest(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    (void)DecodeManifest(bytes.substr(0, size));  // The sanitizers watch.
  }
}

}  // namespace
}  // namespace waybill
