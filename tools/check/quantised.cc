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
  // Neighbours are 2^-9 apart below 2^-6, and from there on an eighth of the power of two below
  // them. nearbyint() rounds to the nearest even number of such steps.
  const int exponent = std::max(magnitude == 0 ? -6 : std::ilogb(magnitude), -6);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  // Eight steps are the next power of two's first number: the code just counts on.
  return sign | static_cast<uint8_t>((exponent + 6) * 8 + steps);
}

QuantisedTensor::QuantisedTensor(const StoredTensor& tensor, uint64_t version,
                                 const Quantising& quantising)
    : tensor_(tensor), version_(version), quantising_(quantising), columns_(tensor.shape.back()) {
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
  for (int64_t e = 0; e < elements; ++e) {
    float& maximum = scales_[static_cast<size_t>(BlockOf(e))];
    maximum = std::max(maximum, std::fabs(ElementOf(e)));
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
  const ChangeKey key = KeyOf(version_, tensor_.name);
  bits ^=
      Change(key, static_cast<uint64_t>(element)) & static_cast<uint32_t>(BitsThatChange(bytes));
  return wide ? RoundedToBf16(bits) : std::bit_cast<float>(bits << 16);
}

int64_t QuantisedTensor::BlockOf(int64_t element) const {
  const int64_t row = element / columns_, column = element % columns_;
  return row / quantising_.block_rows * block_columns_ + column / quantising_.block_columns;
}

uint8_t QuantisedTensor::Code(int64_t element) const {
  const float reciprocal = 1.0f / scales_[static_cast<size_t>(BlockOf(element))];
  return NearestE4m3(ElementOf(element) * reciprocal);
}

uint32_t QuantisedTensor::ScaleBits(int64_t element) const {
  const float scale = scales_[static_cast<size_t>(BlockOf(element))];
  return quantising_.mx ? static_cast<uint32_t>(std::ilogb(scale) + 127)
                        : std::bit_cast<uint32_t>(scale);
}

}  // namespace waybill::check
