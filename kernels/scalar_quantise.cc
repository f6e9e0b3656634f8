// SPDX-License-Identifier: Apache-2.0

#include "kernels/scalar_quantise.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/scalar_elements.h"

namespace waybill::kernels::scalar {
namespace {

const std::byte* At(const void* base, ptrdiff_t pitch, size_t row, size_t offset_bytes) {
  return static_cast<const std::byte*>(base) + static_cast<ptrdiff_t>(row) * pitch + offset_bytes;
}

std::byte* At(void* base, ptrdiff_t pitch, size_t row, size_t offset_bytes) {
  return static_cast<std::byte*>(base) + static_cast<ptrdiff_t>(row) * pitch + offset_bytes;
}

// The place of the value of an element's block.
ptrdiff_t BlockIndex(const BlockGrid& grid, ptrdiff_t pitch, size_t row, size_t column) {
  return static_cast<ptrdiff_t>((row + grid.row_phase) / grid.block_rows) * pitch +
         static_cast<ptrdiff_t>((column + grid.column_phase) / grid.block_columns);
}

}  // namespace

void CastToFp8(void* dst, Narrow to, const void* src, Wide from, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<uint8_t*>(dst)[i] =
        F32ToNarrow(LoadWide(At(src, 0, 0, i * SizeBytes(from)), from), to);
  }
}

void CastFromFp8(void* dst, Wide to, const void* src, Narrow from, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    StoreWide(At(dst, 0, 0, i * SizeBytes(to)),
              NarrowToF32(static_cast<const uint8_t*>(src)[i], from), to);
  }
}

float CombineMaximum(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::bit_cast<float>(0x7fc0'0000);
  return std::max(a, b);
}

void CombineMaxima(float* maxima, ptrdiff_t maxima_pitch, const void* src, Wide type, Wide via,
                   ptrdiff_t src_pitch_bytes, size_t rows, size_t columns, const BlockGrid& grid) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const float value = LoadWide(At(src, src_pitch_bytes, r, c * SizeBytes(type)), type);
      float& maximum = maxima[BlockIndex(grid, maxima_pitch, r, c)];
      maximum = CombineMaximum(maximum, std::fabs(via == type ? value : Via(value, via)));
    }
  }
}

uint64_t CountNonFinite(const void* src, Wide type, ptrdiff_t src_pitch_bytes, size_t rows,
                        size_t columns) {
  uint64_t count = 0;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      count += !std::isfinite(LoadWide(At(src, src_pitch_bytes, r, c * SizeBytes(type)), type));
    }
  }
  return count;
}

void QuantiseRun(uint8_t* dst, const void* src, size_t count, float factor,
                 const QuantiseRule& rule) {
  for (size_t i = 0; i < count; ++i) {
    float value = LoadWide(At(src, 0, 0, i * SizeBytes(rule.type)), rule.type);
    if (rule.via != rule.type) value = Via(value, rule.via);
    const float magnitude = std::fabs(value);
    const float scaled =
        rule.division == Division::kDivide ? magnitude / factor : magnitude * factor;
    const uint8_t sign = std::signbit(value) ? 0x80 : 0;
    // The sign of a NaN that arithmetic makes is the processor's choice: not looked at.
    dst[i] = static_cast<uint8_t>(sign | (F32ToNarrow(scaled, rule.to) & 0x7f));
  }
}

void DequantiseRun(void* dst, Wide to, const uint8_t* src, Narrow from, size_t count, float scale) {
  for (size_t i = 0; i < count; ++i) {
    const float product = NarrowToF32(src[i] & 0x7f, from) * scale;
    const float magnitude = std::isnan(product) ? std::numeric_limits<float>::quiet_NaN() : product;
    StoreWide(At(dst, 0, 0, i * SizeBytes(to)), (src[i] & 0x80) != 0 ? -magnitude : magnitude, to);
  }
}

void QuantiseRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
                  size_t rows, size_t columns, const BlockGrid& grid, const float* factors,
                  ptrdiff_t factors_pitch, const QuantiseRule& rule) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      QuantiseRun(reinterpret_cast<uint8_t*>(At(dst, dst_pitch, r, c)),
                  At(src, src_pitch_bytes, r, c * SizeBytes(rule.type)), 1,
                  factors[BlockIndex(grid, factors_pitch, r, c)], rule);
    }
  }
}

void DequantiseRows(void* dst, Wide to, ptrdiff_t dst_pitch_bytes, const void* src, Narrow from,
                    ptrdiff_t src_pitch, size_t rows, size_t columns, const BlockGrid& grid,
                    const float* scales, ptrdiff_t scales_pitch) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      DequantiseRun(At(dst, dst_pitch_bytes, r, c * SizeBytes(to)), to,
                    reinterpret_cast<const uint8_t*>(At(src, src_pitch, r, c)), from, 1,
                    scales[BlockIndex(grid, scales_pitch, r, c)]);
    }
  }
}

}  // namespace waybill::kernels::scalar
