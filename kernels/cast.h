// SPDX-License-Identifier: Apache-2.0

// Casts between element types.

#ifndef KERNELS_CAST_H_
#define KERNELS_CAST_H_

#include <cstddef>

#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/elements.h"

namespace waybill::kernels {

// Casts `count` elements. What does not fit becomes the nearest number, or the even one if two are
// equally near; overflow gives infinity, and subnormals are kept: as torch does it. A NaN stays one
// of its sign. F32 to BF16 keeps the upper bits of its payload and makes it quiet, casts to F16
// drop the payload, and casts to F32 keep every bit of it.
//
// `src` and `dst` are aligned to their elements and must not overlap. Unless `digest` is null, it
// absorbs the bytes of `dst` in the same pass.
void CastElements(Cast cast, void* dst, const void* src, size_t count, Stores stores,
                  DigestStream* digest);

}  // namespace waybill::kernels

#endif  // KERNELS_CAST_H_
