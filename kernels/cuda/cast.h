// Casts between element types on a GPU.

#ifndef KERNELS_CUDA_CAST_H_
#define KERNELS_CUDA_CAST_H_

#include <cstddef>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"

namespace waybill::kernels::cuda {

// As CastF32ToBf16 of kernels/cast.h. `src` is aligned to 4 bytes and `dst` to 2; fastest at 16.
Outcome CastF32ToBf16(void* dst, const void* src, size_t count, const LeafSum& digest,
                      Stream stream);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_CAST_H_
