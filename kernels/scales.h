// SPDX-License-Identifier: Apache-2.0

// The scales of many blocks at once.

#ifndef KERNELS_SCALES_H_
#define KERNELS_SCALES_H_

#include <cstddef>

#include "kernels/scale.h"

namespace waybill::kernels {

// Sets scales[i] and factors[i] to those of ScaleOf(maxima[i], rule), to the bit. No maximum is
// negative. `factors` may be `maxima`.
void ScalesOf(float* scales, float* factors, const float* maxima, size_t count,
              const ScaleRule& rule);

}  // namespace waybill::kernels

#endif  // KERNELS_SCALES_H_
