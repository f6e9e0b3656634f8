// Casts to and from 8-bit floats, one element at a time and without scales.

#ifndef KERNELS_FP8_H_
#define KERNELS_FP8_H_

#include <cstddef>

#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/elements.h"

namespace waybill::kernels {

// Casts `count` elements: to the nearest, of two as near to the even one; subnormals are kept, and
// zeros keep their signs. Saturates: what is larger than LargestOf(to) becomes it, and so do the
// infinities, for E5M2 too. (Libraries differ in what a cast makes of these. All agree once values
// are clamped, which is what this does.) A NaN becomes 0x7f with its sign.
//
// `src` is aligned to its elements; the ranges do not overlap. Unless `digest` is null, absorbs the
// bytes written in the same pass.
void CastToFp8(void* dst, Narrow to, const void* src, Wide from, size_t count, Stores stores,
               DigestStream* digest);

// The way back, which is exact: F32, F16 and BF16 all have the values of both. A NaN becomes the
// type's quiet NaN with no other payload, and keeps its sign. `dst` is aligned to its elements.
void CastFromFp8(void* dst, Wide to, const void* src, Narrow from, size_t count, Stores stores,
                 DigestStream* digest);

}  // namespace waybill::kernels

#endif  // KERNELS_FP8_H_
