#include "kernels/nvfp4.h"

#include <gtest/gtest.h>

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
#include "kernels/quantise_inputs.h"
#include "kernels/scalar.h"
#include "kernels/scalar_elements.h"
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
