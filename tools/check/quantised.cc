// SPDX-License-Identifier: Apache-2.0

#include "tools/check/quantised.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tools/check/change.h"

namespace waybill::check {
namespace {

// Rounded to the nearest BF16, of two as near the even one; the weights are finite.
float RoundedToBf16(uint32_t f32_bits) {
  const uint32_t below = f32_bits & 0xFFFF;
  uint32_t high = f32_bits >> 16;
  if (below > 0x8000 || (below == 0x8000 && (high & 1) != 0)) ++high;
  return std::bit_cast<float>(high << 16);
}

}  // namespace

uint8_t NearestE4m3(float value) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return sign | 0x7F;
  const float magnitude = std::min(std::fabs(value), 448.0f);
  if (magnitude < 0x1p-6f) {
    // Neighbours are 2^-9 apart, which is what floats from 2^14 on can tell: adding rounds to them.
    const float sum = magnitude + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(sum) & 0xF);
  }
  // A float's exponent and first three bits of mantissa, rounded to nearest even, but for the bias.
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = (bits + 0x7FFFF + (bits >> 20 & 1)) >> 20;
  return sign | static_cast<uint8_t>(rounded - ((127 - 7) << 3));
}

QuantisedTensor::QuantisedTensor(const StoredTensor& tensor, const WeightVersion& version,
                                 const Quantising& quantising)
    : tensor_(tensor),
      quantising_(quantising),
      change_(KeyOf(version, tensor.name)),
      columns_(tensor.shape.back()) {
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape) elements *= extent;
  const int64_t rows = elements / columns_;
  if (quantising_.block_rows == 0) quantising_.block_rows = rows;
  if (quantising_.block_columns == 0) quantising_.block_columns = columns_;
  if (quantising_.cell_rows == 0) quantising_.cell_rows = rows;
  if (quantising_.cell_columns == 0) quantising_.cell_columns = columns_;
  block_columns_ = (columns_ + quantising_.block_columns - 1) / quantising_.block_columns;
  const int64_t block_rows = (rows + quantising_.block_rows - 1) / quantising_.block_rows;
  scales_.resize(static_cast<size_t>(block_rows * block_columns_), 0);
  for (int64_t row = 0; row < rows; ++row) {
    ForEachOfRow(row * columns_, columns_, [&](int64_t element, int64_t block) {
      float& maximum = scales_[static_cast<size_t>(block)];
      maximum = std::max(maximum, std::fabs(ElementOf(element)));
    });
  }
  for (float& scale : scales_) {
    const float magnitude = std::max(scale, quantising_.epsilon);
    if (quantising_.mx) {
      const int exponent = magnitude == 0 ? -127 : std::ilogb(magnitude) - 8;
      scale = std::ldexp(1.0f, std::clamp(exponent, -127, 127));
    } else {
      scale = magnitude / 448.0f;
    }
  }
}

float QuantisedTensor::ElementOf(int64_t element) const {
  const bool wide = tensor_.dtype == "F32";
  const uint32_t bytes = wide ? 4 : 2;
  uint32_t bits = 0;
  std::memcpy(&bits, tensor_.data + element * bytes, bytes);
  bits ^= Change(change_, static_cast<uint64_t>(element)) &
          static_cast<uint32_t>(BitsThatChange(bytes));
  return wide ? RoundedToBf16(bits) : std::bit_cast<float>(bits << 16);
}

int64_t QuantisedTensor::BlockOf(int64_t element) const {
  const int64_t row = element / columns_, column = element % columns_;
  return row / quantising_.block_rows * block_columns_ + column / quantising_.block_columns;
}

template <typename Visit>
void QuantisedTensor::ForEachOfRow(int64_t first, int64_t count, Visit visit) const {
  for (int64_t at = 0; at < count;) {
    const int64_t left =
        quantising_.block_columns - (first + at) % columns_ % quantising_.block_columns;
    const int64_t end = std::min(count, at + left);
    const int64_t block = BlockOf(first + at);
    for (; at < end; ++at) visit(first + at, block);
  }
}

void QuantisedTensor::Codes(int64_t first, int64_t count, uint8_t* codes) const {
  int64_t last = -1;
  float reciprocal = 0;
  ForEachOfRow(first, count, [&](int64_t element, int64_t block) {
    if (block != last) reciprocal = 1.0f / scales_[static_cast<size_t>(block)];
    last = block;
    *codes++ = NearestE4m3(ElementOf(element) * reciprocal);
  });
}

uint32_t QuantisedTensor::ScaleBits(int64_t element) const {
  const float scale = scales_[static_cast<size_t>(BlockOf(element))];
  return quantising_.mx ? static_cast<uint32_t>(std::ilogb(scale) + 127)
                        : std::bit_cast<uint32_t>(scale);
}

}  // namespace waybill::check
