// SPDX-License-Identifier: Apache-2.0

// What a rank's memory holds, taken as it lies.
#ifndef WAYBILL_CORE_TENSOR_VERBATIM_H_
#define WAYBILL_CORE_TENSOR_VERBATIM_H_

#include "core/tensor/manifest.h"

namespace waybill {

// Returns a manifest of the same memory whose shards are all plain elements: quantised elements and
// scales are tensors of their own, named "w as F8_E4M3 by 128x128 with F32 scales" and what else
// tells one quantisation from another. A plan between such manifests copies, and converts nothing.
// Shards and regions keep their indices; padding and aliases are left out.
Manifest Verbatim(const Manifest& manifest);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_VERBATIM_H_
