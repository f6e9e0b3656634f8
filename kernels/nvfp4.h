// NVFP4: 4-bit floats (E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6) in blocks of 16 of a row, each with an
// E4M3 scale, under one F32 scale for the tensor. As torchao's nvfp4_quantize has it, to the bit.

#ifndef KERNELS_NVFP4_H_
#define KERNELS_NVFP4_H_

#include <cstddef>
#include <cstdint>

#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/elements.h"

namespace waybill::kernels {

inline constexpr size_t kNvfp4BlockColumns = 16;

// The tensor's scale from its largest magnitude (CombineMaxima over the whole of it): maximum /
// (448 * 6). 2^-120 at least: a tensor of zeros has one, and 1 / (g * s) below is finite.
float Nvfp4TensorScale(float maximum);

// With g the tensor's scale, b the largest magnitude of a block, L and T the least normal and the
// largest number of E4M3: the block's scale is s = E4M3(clamp(b / 6 / g, L, T)), and an element is
// E2M1(clamp(x * ((1 / g) / s), -6, 6)); every step is rounded to a float, and the last ones to the
// nearest even. Of two neighbours the even one lies in the low half of a byte. Elements are rounded
// to `via` first, as for CombineMaxima. A NaN makes its block's scale a NaN, and becomes +-6.
//
// dst has columns / 2 bytes a row, scales columns / 16. `columns` is a multiple of 16; `src` and
// its pitch are aligned to the elements. Unless `digest` is null, it absorbs dst's rows in order;
// scales are not digested.
void QuantiseNvfp4Rows(void* dst, ptrdiff_t dst_pitch, uint8_t* scales, ptrdiff_t scales_pitch,
                       const void* src, Wide type, Wide via, ptrdiff_t src_pitch_bytes, size_t rows,
                       size_t columns, float tensor_scale, Stores stores, DigestStream* digest);

// The way back: the element's value * (s * g), rounded to floats, and then to `to`.
void DequantiseNvfp4Rows(void* dst, Wide to, ptrdiff_t dst_pitch_bytes, const void* src,
                         ptrdiff_t src_pitch, const uint8_t* scales, ptrdiff_t scales_pitch,
                         size_t rows, size_t columns, float tensor_scale);

}  // namespace waybill::kernels

#endif  // KERNELS_NVFP4_H_
