#include "kernels/nvfp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/elements.h"
#include "kernels/every_target.h"
#include "kernels/quantise_inputs.h"
#include "kernels/scalar.h"
#include "kernels/scalar_elements.h"
#include "kernels/scalar_nvfp4.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

std::string Hash(const void* data, size_t size_bytes) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(Fnv(data, size_bytes)));
  return text;
}

float LargestOfAll(const SkewedBytes& src, Wide type) {
  float largest = 0;
  for (size_t i = 0; i < src.size(); i += SizeBytes(type)) {
    largest = std::max(largest, std::fabs(scalar::LoadWide(src.data() + i, type)));
  }
  return largest;
}

TEST(Nvfp4, IsWhatNumpyAndMlDtypesGive) {
  std::ifstream file("kernels/golden/quantise_vectors.txt");
  size_t found = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("nvfp4 ")) continue;
    ++found;
    std::istringstream words(line.substr(6));
    std::string wide;
    size_t rows;
    size_t columns;
    std::string expected_codes;
    std::string expected_scales;
    std::string expected_values;
    ASSERT_TRUE(words >> wide >> rows >> columns >> expected_codes >> expected_scales >>
                expected_values);
    const Wide type = wide == "f32" ? Wide::kF32 : Wide::kBf16;
    const SkewedBytes src = MatrixOf(type, rows * columns, 7);
    const float tensor_scale = Nvfp4TensorScale(LargestOfAll(src, type));
    for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
      SkewedBytes codes(rows * columns / 2, 3);
      std::vector<uint8_t> scales(rows * columns / 16);
      std::vector<float> values(rows * columns);
      DigestStream digest;
      QuantiseNvfp4Rows(codes.data(), columns / 2, scales.data(), columns / 16, src.data(), type,
                        type, columns * SizeBytes(type), rows, columns, tensor_scale, stores,
                        &digest);
      StreamFence();
      DequantiseNvfp4Rows(values.data(), Wide::kF32, columns * 4, codes.data(), columns / 2,
                          scales.data(), columns / 16, rows, columns, tensor_scale);
      EXPECT_EQ(Hash(codes.data(), codes.size()), expected_codes) << line;
      EXPECT_EQ(Hash(scales.data(), scales.size()), expected_scales) << line;
      EXPECT_EQ(Hash(values.data(), values.size() * 4), expected_values) << line;
      EXPECT_EQ(digest.sum(), scalar::LeafSum(codes.data(), codes.size(), 0));
      EXPECT_TRUE(codes.GuardsHold());
    }
  }
  EXPECT_GE(found, 2U);
}

// Every element among neighbours of its binade, by vectors and by what they leave over, under
// tensor scales of all sizes.
TEST(Nvfp4, EveryBlockIsAsTheScalarOneOnEveryTarget) {
  constexpr Wide kWides[] = {Wide::kF32, Wide::kF16, Wide::kBf16};
  const uint32_t kTensorScales[] = {0x3f80'0000, 0x3a12'3456, 0x0380'0000, 0x7f7f'ffff,
                                    0x7f80'0000, 0x7fc0'0000, 0x0000'0001};
  for (const Wide type : kWides) {
    const size_t size = SizeBytes(type);
    const SkewedBytes src = AllInputs(type, 1);
    // Five blocks less: no vector takes all that is left.
    const size_t columns = src.size() / size - 5 * 16;
    for (const uint32_t bits : kTensorScales) {
      const float tensor_scale = std::bit_cast<float>(bits);
      for (const Wide via : kWides) {
        if (via != type && bits % 2 != 0) continue;
        std::vector<uint8_t> codes(columns / 2);
        std::vector<uint8_t> scales(columns / 16);
        for (size_t b = 0; b < scales.size(); ++b) {
          scalar::QuantiseNvfp4Block(codes.data() + b * 8, &scales[b], src.data() + b * 16 * size,
                                     type, via, tensor_scale);
        }
        OnEveryTarget([&] {
          std::vector<uint8_t> found(codes.size());
          std::vector<uint8_t> found_scales(scales.size());
          QuantiseNvfp4Rows(found.data(), 0, found_scales.data(), 0, src.data(), type, via, 0, 1,
                            columns, tensor_scale, Stores::kCached, nullptr);
          ASSERT_EQ(found_scales, scales) << std::hex << bits;
          ASSERT_EQ(found, codes) << std::hex << bits;
        });
      }
    }
  }
}

TEST(Nvfp4, EveryCodeComesBackAsTheScalarOneOnEveryTarget) {
  // Every byte under every scale, in rows of 17 blocks: more than a vector, and some over.
  constexpr size_t kBlocks = 17;
  std::vector<uint8_t> codes(256 * kBlocks * 8);
  std::vector<uint8_t> scales(256 * kBlocks);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i % 8 + i / 8 * 8 * 5);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(i * 7 / 32);
  for (const Wide to : {Wide::kF32, Wide::kF16, Wide::kBf16}) {
    const size_t block_bytes = 16 * SizeBytes(to);
    for (const uint32_t bits :
         {0x3f80'0000U, 0x3a12'3456U, 0x0380'0000U, 0x7f00'0000U, 0x7f80'0000U, 0x7fc0'0000U}) {
      const float tensor_scale = std::bit_cast<float>(bits);
      std::vector<uint8_t> expected(scales.size() * block_bytes);
      for (size_t b = 0; b < scales.size(); ++b) {
        scalar::DequantiseNvfp4Block(expected.data() + b * block_bytes, to, codes.data() + b * 8,
                                     scales[b], tensor_scale);
      }
      OnEveryTarget([&] {
        std::vector<uint8_t> values(expected.size());
        DequantiseNvfp4Rows(values.data(), to, kBlocks * block_bytes, codes.data(), kBlocks * 8,
                            scales.data(), kBlocks, 256, kBlocks * 16, tensor_scale);
        ASSERT_EQ(values, expected) << std::hex << bits;
      });
    }
  }
}

// Under scales of 1: an amplitude of 6 * 448 has g = 1, and its neighbours' block scale is 448.
TEST(Nvfp4, EveryElementIsTheNearest) {
  for (float step = 0; step <= 7; step += 1.0F / 64) {
    std::vector<float> block(16, 448 * std::min(step, 6.0F));
    block[0] = 448 * 6;
    block[1] = -block[1];
    uint8_t codes[8];
    uint8_t scale;
    QuantiseNvfp4Rows(codes, 8, &scale, 1, block.data(), Wide::kF32, Wide::kF32, 64, 1, 16, 1,
                      Stores::kCached, nullptr);
    EXPECT_EQ(scale, 0x7e);
    const uint32_t nearest = scalar::NearestCode(std::min(step, 6.0F), scalar::kE2m1Layout);
    EXPECT_EQ(codes[0], 7 | (nearest | 8) << 4) << step;
    EXPECT_EQ(codes[7], nearest | nearest << 4) << step;
  }
}

TEST(Nvfp4, ZerosHaveScalesAndANaNMarksItsBlock) {
  std::vector<float> values(32, 0.0F);
  values[20] = -std::numeric_limits<float>::quiet_NaN();
  const float tensor_scale = Nvfp4TensorScale(0);
  EXPECT_EQ(tensor_scale, 0x1p-120F);
  uint8_t codes[16];
  uint8_t scales[2];
  QuantiseNvfp4Rows(codes, 16, scales, 2, values.data(), Wide::kF32, Wide::kF32, 128, 1, 32,
                    tensor_scale, Stores::kCached, nullptr);
  EXPECT_EQ(scales[0], 0x08);
  EXPECT_EQ(scales[1], 0x7f);
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(codes[10] & 15, 15);
}

}  // namespace
}  // namespace waybill::kernels
