#include "kernels/nvfp4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/scalar_elements.h"

namespace waybill::kernels {
namespace {

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
  return scalar::F32ToNarrow(
      std::isnan(scale) ? std::fabs(scale) : std::max(scale, kLeastBlockScale), Narrow::kE4m3);
}

// One block: 16 elements to 8 bytes.
void QuantiseBlock(uint8_t* dst, uint8_t* scale, const std::byte* src, Wide type, Wide via,
                   float tensor_scale) {
  float values[kNvfp4BlockColumns];
  float maximum = 0;
  bool has_nan = false;
  for (size_t i = 0; i < kNvfp4BlockColumns; ++i) {
    const float value = scalar::LoadWide(src + i * SizeBytes(type), type);
    values[i] = via == type ? value : scalar::Via(value, via);
    has_nan |= std::isnan(values[i]);
    maximum = std::max(maximum, std::fabs(values[i]));
  }
  if (has_nan) maximum = std::numeric_limits<float>::quiet_NaN();
  *scale = BlockScale(maximum, tensor_scale);
  const float factor = 1 / tensor_scale / scalar::NarrowToF32(*scale, Narrow::kE4m3);
  for (size_t i = 0; i < kNvfp4BlockColumns; i += 2) {
    dst[i / 2] = static_cast<uint8_t>(Code(values[i], factor) | Code(values[i + 1], factor) << 4);
  }
}

}  // namespace

float Nvfp4TensorScale(float maximum) {
  constexpr float kWhole = 448 * kLargest;
  constexpr float kLeast = 0x1p-120F;
  if (std::isnan(maximum)) return std::numeric_limits<float>::quiet_NaN();
  return std::max(maximum / kWhole, kLeast);
}

void QuantiseNvfp4Rows(void* dst, ptrdiff_t dst_pitch, uint8_t* scales, ptrdiff_t scales_pitch,
                       const void* src, Wide type, Wide via, ptrdiff_t src_pitch_bytes, size_t rows,
                       size_t columns, float tensor_scale, Stores stores, DigestStream* digest) {
  alignas(64) uint8_t piece[kLeafBytes];
  constexpr size_t kPieceColumns = 2 * sizeof(piece);
  uint8_t* to = static_cast<uint8_t*>(dst);
  const std::byte* from = static_cast<const std::byte*>(src);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t begin = 0; begin < columns; begin += kPieceColumns) {
      const size_t count = std::min(kPieceColumns, columns - begin);
      for (size_t c = 0; c < count; c += kNvfp4BlockColumns) {
        QuantiseBlock(piece + c / 2, scales + (begin + c) / kNvfp4BlockColumns,
                      from + (begin + c) * SizeBytes(type), type, via, tensor_scale);
      }
      if (digest == nullptr) {
        Copy(to + begin / 2, piece, count / 2, stores);
      } else {
        digest->AbsorbCopy(to + begin / 2, piece, count / 2, stores);
      }
    }
    to += dst_pitch;
    from += src_pitch_bytes;
    scales += scales_pitch;
  }
}

void DequantiseNvfp4Rows(void* dst, Wide to, ptrdiff_t dst_pitch_bytes, const void* src,
                         ptrdiff_t src_pitch, const uint8_t* scales, ptrdiff_t scales_pitch,
                         size_t rows, size_t columns, float tensor_scale) {
  std::byte* out = static_cast<std::byte*>(dst);
  const uint8_t* codes = static_cast<const uint8_t*>(src);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const uint8_t code = codes[c / 2] >> (c % 2 * 4) & 15;
      const float scale =
          scalar::NarrowToF32(scales[c / kNvfp4BlockColumns], Narrow::kE4m3) * tensor_scale;
      const float magnitude = kValues[code & 7] * scale;
      scalar::StoreWide(out + c * SizeBytes(to), (code & 8) != 0 ? -magnitude : magnitude, to);
    }
    out += dst_pitch_bytes;
    codes += src_pitch;
    scales += scales_pitch;
  }
}

}  // namespace waybill::kernels
