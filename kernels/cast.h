// Casts between element types.

#ifndef KERNELS_CAST_H_
#define KERNELS_CAST_H_

#include <cstddef>

#include "kernels/copy.h"
#include "kernels/digest.h"

namespace waybill::kernels {

// Casts `count` floats to BF16: to the nearest, of two as near to the even one. A NaN stays a NaN,
// made quiet, with its sign and the upper bits of its payload; overflow gives infinity; subnormals
// are kept. `src` is aligned to 4 bytes and `dst` to 2; they do not overlap. Unless `digest` is
// null, absorbs the BF16 bytes in the same pass.
void CastF32ToBf16(void* dst, const void* src, size_t count, Stores stores, DigestStream* digest);

}  // namespace waybill::kernels

#endif  // KERNELS_CAST_H_
