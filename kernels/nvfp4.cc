#include "kernels/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/fp8.h"
#include "kernels/maxima.h"
#include "kernels/nvfp4_row.h"
#include "kernels/scalar_nvfp4.h"

namespace waybill::kernels {
namespace {

constexpr float kLargest = 6;
constexpr float kLeastBlockScale = 0x1p-6F;

// Of a row, as many as vectors work on between two looks at their scales: these stay in the
// first-level cache.
constexpr size_t kBlocksAtOnce = 64;

// Blocks that follow one another in a row; at most kBlocksAtOnce.
void QuantiseBlocks(uint8_t* dst, uint8_t* scales, const std::byte* src, Wide type, Wide via,
                    float tensor_scale, size_t count) {
  float values[kBlocksAtOnce] = {};
  CombineMaxima(values, 0, src, type, via, 0, 1, count * kNvfp4BlockColumns,
                {1, kNvfp4BlockColumns});
  // A NaN stays one; its sign is the processor's choice, and would be that of the code.
  for (float& value : values) {
    value = std::fabs(std::max(value / kLargest / tensor_scale, kLeastBlockScale));
  }
  CastToFp8(scales, Narrow::kE4m3, values, Wide::kF32, count, Stores::kCached, nullptr);
  CastFromFp8(values, Wide::kF32, scales, Narrow::kE4m3, count, Stores::kCached, nullptr);
  const float reciprocal = 1 / tensor_scale;
  for (float& value : values) value = reciprocal / value;
  for (size_t b = QuantiseNvfp4Blocks(dst, src, type, via, values, count); b < count; ++b) {
    scalar::QuantiseNvfp4Block(dst + b * kNvfp4BlockColumns / 2, scales + b,
                               src + b * kNvfp4BlockColumns * SizeBytes(type), type, via,
                               tensor_scale);
  }
}

void DequantiseBlocks(std::byte* dst, Wide to, const uint8_t* src, const uint8_t* scales,
                      float tensor_scale, size_t count) {
  float values[kBlocksAtOnce] = {};
  CastFromFp8(values, Wide::kF32, scales, Narrow::kE4m3, count, Stores::kCached, nullptr);
  for (float& value : values) value *= tensor_scale;
  for (size_t b = DequantiseNvfp4Blocks(dst, to, src, values, count); b < count; ++b) {
    scalar::DequantiseNvfp4Block(dst + b * kNvfp4BlockColumns * SizeBytes(to), to,
                                 src + b * kNvfp4BlockColumns / 2, scales[b], tensor_scale);
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
  constexpr size_t kPieceBlocks = 2 * sizeof(piece) / kNvfp4BlockColumns;
  uint8_t* to = static_cast<uint8_t*>(dst);
  const std::byte* from = static_cast<const std::byte*>(src);
  const size_t blocks = columns / kNvfp4BlockColumns;
  const size_t block_bytes = kNvfp4BlockColumns * SizeBytes(type);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t begin = 0; begin < blocks; begin += kPieceBlocks) {
      const size_t count = std::min(kPieceBlocks, blocks - begin);
      for (size_t b = 0; b < count; b += kBlocksAtOnce) {
        QuantiseBlocks(piece + b * kNvfp4BlockColumns / 2, scales + begin + b,
                       from + (begin + b) * block_bytes, type, via, tensor_scale,
                       std::min(kBlocksAtOnce, count - b));
      }
      uint8_t* const out = to + begin * kNvfp4BlockColumns / 2;
      if (digest == nullptr) {
        Copy(out, piece, count * kNvfp4BlockColumns / 2, stores);
      } else {
        digest->AbsorbCopy(out, piece, count * kNvfp4BlockColumns / 2, stores);
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
  const size_t blocks = columns / kNvfp4BlockColumns;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t b = 0; b < blocks; b += kBlocksAtOnce) {
      DequantiseBlocks(out + b * kNvfp4BlockColumns * SizeBytes(to), to,
                       codes + b * kNvfp4BlockColumns / 2, scales + b, tensor_scale,
                       std::min(kBlocksAtOnce, blocks - b));
    }
    out += dst_pitch_bytes;
    codes += src_pitch;
    scales += scales_pitch;
  }
}

}  // namespace waybill::kernels
