#include "kernels/scalar_nvfp4.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/scalar_elements.h"

namespace waybill::kernels::scalar {
namespace {

constexpr size_t kBlock = 16;
constexpr float kLargest = 6;
constexpr float kLeastBlockScale = 0x1p-6F;
constexpr float kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// How many of the bounds between two values are passed. A bound itself belongs to the even code.
uint8_t MagnitudeCode(float magnitude) {
  return static_cast<uint8_t>((magnitude > 0.25F) + (magnitude >= 0.75F) + (magnitude > 1.25F) +
                              (magnitude >= 1.75F) + (magnitude > 2.5F) + (magnitude >= 3.5F) +
                              (magnitude > 5));
}

uint8_t Code(float value, float factor) {
  const uint8_t sign = std::signbit(value) ? 8 : 0;
  const float scaled = std::fabs(value) * factor;
  return sign | (std::isnan(scaled) ? 7 : MagnitudeCode(scaled));
}

// Clamps as the references do, which leaves a NaN a NaN.
uint8_t BlockScale(float maximum, float tensor_scale) {
  const float scale = maximum / kLargest / tensor_scale;
  return F32ToNarrow(std::isnan(scale) ? std::fabs(scale) : std::max(scale, kLeastBlockScale),
                     Narrow::kE4m3);
}

}  // namespace

void QuantiseNvfp4Block(uint8_t* dst, uint8_t* scale, const void* src, Wide type, Wide via,
                        float tensor_scale) {
  float values[kBlock];
  float maximum = 0;
  bool has_nan = false;
  for (size_t i = 0; i < kBlock; ++i) {
    const float value = LoadWide(static_cast<const std::byte*>(src) + i * SizeBytes(type), type);
    values[i] = via == type ? value : Via(value, via);
    has_nan |= std::isnan(values[i]);
    maximum = std::max(maximum, std::fabs(values[i]));
  }
  if (has_nan) maximum = std::numeric_limits<float>::quiet_NaN();
  *scale = BlockScale(maximum, tensor_scale);
  const float factor = 1 / tensor_scale / NarrowToF32(*scale, Narrow::kE4m3);
  for (size_t i = 0; i < kBlock; i += 2) {
    dst[i / 2] = static_cast<uint8_t>(Code(values[i], factor) | Code(values[i + 1], factor) << 4);
  }
}

void DequantiseNvfp4Block(void* dst, Wide to, const uint8_t* src, uint8_t scale,
                          float tensor_scale) {
  const float factor = NarrowToF32(scale, Narrow::kE4m3) * tensor_scale;
  for (size_t i = 0; i < kBlock; ++i) {
    const uint8_t code = src[i / 2] >> (i % 2 * 4) & 15;
    const float product = kValues[code & 7] * factor;
    const float magnitude = std::isnan(product) ? std::numeric_limits<float>::quiet_NaN() : product;
    StoreWide(static_cast<std::byte*>(dst) + i * SizeBytes(to),
              (code & 8) != 0 ? -magnitude : magnitude, to);
  }
}

}  // namespace waybill::kernels::scalar
