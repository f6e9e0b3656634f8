// Casts between element types.

#ifndef KERNELS_CAST_H_
#define KERNELS_CAST_H_

#include <cstddef>

#include "kernels/copy.h"
#include "kernels/digest.h"

namespace waybill::kernels {

// Casts `count` floats to the nearest BF16, or to the even one if two are equally near. A NaN
// becomes a quiet NaN with its sign and the upper bits of its payload. Overflow gives infinity, and
// subnormals are kept. `src` is aligned to 4 bytes and `dst` to 2; they must not overlap. Unless
// `digest` is null, it absorbs the BF16 bytes in the same pass.
void CastF32ToBf16(void* dst, const void* src, size_t count, Stores stores, DigestStream* digest);

}  // namespace waybill::kernels

#endif  // KERNELS_CAST_H_
