// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/manifest_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/tensor/manifest.h"

namespace waybill {
namespace {

constexpr Format kBf16{Dtype::kBf16};

Box Make(std::vector<int64_t> begin, std::vector<int64_t> end) { return Box(begin, end); }

// q [4, 8] and k [2, 8] fused in one region of 6 rows, and one row of padding.
Manifest Fused() {
  Manifest m;
  m.AddRegion("qkv", 7 * 8 * 2);
  const uint32_t q = m.AddTensor("q", {8, 8}, Dtype::kBf16);
  const uint32_t k = m.AddTensor("k", {4, 8}, Dtype::kBf16);
  m.AddShard(q, kBf16, Make({4, 0}, {8, 8}), {0, 0, {8, 1}});
  m.AddShard(k, kBf16, Make({2, 0}, {4, 8}), {0, 64, {8, 1}});
  m.AddPadding(2, {8}, {0, 96, {1}});
  return m;
}

TEST(CheckManifest, TakesAWorkersFusedRegion) {
  EXPECT_EQ(CheckManifest(Fused(), Holes::kRefused).message(), "");
}

struct Case {
  const char* name;
  std::function<void(Manifest&)> spoil;
  const char* message;
};

const Case kCases[] = {
    {"a_tensor_twice", [](Manifest& m) { m.AddTensor("q", {8, 8}, Dtype::kBf16); },
     "tensor \"q\" is declared twice"},
    {"no_name", [](Manifest& m) { m.AddTensor("", {8}, Dtype::kBf16); },
     "tensor 2: its name is empty"},
    {"a_shape_beyond_63_bits",
     [](Manifest& m) { m.AddTensor("big", {int64_t{1} << 40, int64_t{1} << 40}, Dtype::kBf16); },
     "tensor \"big\": shape [1099511627776, 1099511627776] of 2-byte elements does not fit into "
     "2^63 bytes"},
    {"a_negative_extent", [](Manifest& m) { m.AddTensor("n", {-1}, Dtype::kBf16); },
     "tensor \"n\": extent -1 is negative"},
    {"a_box_outside_its_tensor",
     [](Manifest& m) { m.AddShard(0, kBf16, Make({4, 0}, {9, 8}), {0, 0, {8, 1}}); },
     "tensor \"q\" [4, 9) x [0, 8): not in its shape [8, 8]"},
    {"a_place_outside_its_region",
     [](Manifest& m) { m.AddShard(0, kBf16, Make({0, 0}, {4, 8}), {0, 64, {8, 1}}); },
     "tensor \"q\" [0, 4) x [0, 8): bytes [64, 128) are not in region \"qkv\" of 112 bytes"},
    {"a_place_near_2_to_the_64",
     [](Manifest& m) { m.AddShard(0, kBf16, Make({0, 0}, {4, 8}), {0, ~uint64_t{0} - 3, {8, 1}}); },
     "tensor \"q\" [0, 4) x [0, 8): bytes [18446744073709551612, 2^64) are not in region"},
    {"no_such_region",
     [](Manifest& m) { m.AddShard(0, kBf16, Make({0, 0}, {4, 8}), {1, 0, {8, 1}}); },
     "tensor \"q\" [0, 4) x [0, 8): region 1 of 1"},
    {"bytes_twice", [](Manifest& m) { m.AddShard(0, kBf16, Make({0, 0}, {1, 8}), {0, 8, {8, 1}}); },
     "region \"qkv\": bytes [8, 24) belong to both tensor \"q\" [4, 8) x [0, 8) and tensor \"q\" "
     "[0, 1) x [0, 8)"},
    {"an_undeclared_hole", [](Manifest& m) { m.AddRegion("norm", 32); },
     "region \"norm\": bytes [0, 32) are neither a shard nor declared padding"},
    {"an_empty_box_beyond_its_tensor",
     [](Manifest& m) {
       m.AddShard(0, kBf16, Make({0, std::numeric_limits<int64_t>::min()}, {0, 8}), {0, 0, {8, 1}});
     },
     "tensor \"q\" [0, 0) x [-9223372036854775808, 8): not in its shape [8, 8]"},
    {"padding_of_no_bytes", [](Manifest& m) { m.AddPadding(0, {int64_t{1} << 62}, {0, 0, {1}}); },
     "padding 1: 1 dimensions of 0-byte elements"},
    {"an_alias_with_a_tensors_name", [](Manifest& m) { m.AddAlias("k", 0); },
     "alias \"k\": empty, or the name of something else"},
    {"an_alias_of_nothing", [](Manifest& m) { m.AddAlias("head", 7); },
     "alias \"head\": tensor 7 of 2"},
};

class CheckManifestTest : public testing::TestWithParam<Case> {};

TEST_P(CheckManifestTest, NamesWhatIsWrong) {
  Manifest manifest = Fused();
  GetParam().spoil(manifest);
  const absl::Status status = CheckManifest(manifest, Holes::kRefused);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()).substr(0, strlen(GetParam().message)),
            GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(Cases, CheckManifestTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// A few bytes can describe any number of runs.
TEST(CheckManifest, ChecksInterleavedShardsWithoutWalkingThem) {
  constexpr int64_t kRows = int64_t{1} << 40;
  const auto interleaved = [](int64_t columns_of_b, int64_t stride_of_b) {
    Manifest m;
    m.AddRegion("ab", kRows * 3 * 2);
    const uint32_t a = m.AddTensor("a", {kRows, 1}, Dtype::kBf16);
    const uint32_t b = m.AddTensor("b", {kRows, 2}, Dtype::kBf16);
    m.AddShard(a, kBf16, Make({0, 0}, {kRows, 1}), {0, 0, {3, 1}});
    m.AddShard(b, kBf16, Make({0, 0}, {kRows, columns_of_b}), {0, 2, {stride_of_b, 1}});
    return CheckManifest(m, Holes::kRefused);
  };
  EXPECT_EQ(interleaved(2, 3).message(), "");
  EXPECT_EQ(interleaved(1, 3).message(),
            "region \"ab\": bytes [4, 6) are neither a shard nor declared padding");
  EXPECT_EQ(
      interleaved(2, 2).message(),
      "region \"ab\": bytes [6, 8) belong to both tensor \"b\" [0, 1099511627776) x [0, 2) and "
      "tensor \"a\" [0, 1099511627776) x [0, 1)");
}

TEST(CheckManifest, ASmallManifestCostsLittle) {
  constexpr int64_t kMany = int64_t{1} << 31;
  Manifest m;
  m.AddRegion("r", kMany * 2);
  const uint32_t t = m.AddTensor("t", {kMany / 2}, Dtype::kBf16);
  m.AddShard(t, kBf16, Make({0}, {kMany / 2}), {0, 0, {2}});
  EXPECT_EQ(CheckManifest(m, Holes::kRefused).message(),
            "region \"r\": bytes [2, 4) are neither a shard nor declared padding");
}

TEST(CheckOrder, RefusesAnEnginesOwnOrderByItsName) {
  Manifest manifest = Fused();
  EXPECT_TRUE(CheckOrder(manifest).ok());
  manifest.AddShard(0, Format::Quantised({}), Make({0, 0}, {1, 8}), {0, 0, {8, 1}, "marlin"});
  EXPECT_TRUE(CheckManifest(manifest, Holes::kAllowed).ok());
  EXPECT_EQ(
      CheckOrder(manifest).message(),
      "tensor \"q\" [0, 1) x [0, 8) lies in the engine's own order \"marlin\", which is not "
      "known: declare it as the engine loads it, row by row, and receive in shadow-copy mode, "
      "whose commit runs the engine's step after loading; or have the engine keep the plain "
      "layout");

  Manifest scales = Fused();
  scales.AddShard(0, Format::Scales({}), Make({0, 0}, {1, 1}), {0, 0, {1, 1}, "mx-128x4"});
  EXPECT_EQ(CheckOrder(scales).message().substr(0, 77),
            "scales of tensor \"q\" [0, 1) x [0, 1) lie in the engine's own order \"mx-128x4\"");
}

TEST(CheckManifest, ATrainersRegionMayHoldMore) {
  Manifest manifest = Fused();
  manifest.AddRegion("optimizer", 1000);
  EXPECT_TRUE(CheckManifest(manifest, Holes::kAllowed).ok());
  EXPECT_FALSE(CheckManifest(manifest, Holes::kRefused).ok());
}

}  // namespace
}  // namespace waybill
