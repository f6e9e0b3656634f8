// The scalar truth of nvfp4.h: one block at a time, as its definition reads.

#ifndef KERNELS_SCALAR_NVFP4_H_
#define KERNELS_SCALAR_NVFP4_H_

#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"

namespace waybill::kernels::scalar {

// 16 elements to 8 bytes and a scale.
void QuantiseNvfp4Block(uint8_t* dst, uint8_t* scale, const void* src, Wide type, Wide via,
                        float tensor_scale);
void DequantiseNvfp4Block(void* dst, Wide to, const uint8_t* src, uint8_t scale,
                          float tensor_scale);

}  // namespace waybill::kernels::scalar

#endif  // KERNELS_SCALAR_NVFP4_H_
