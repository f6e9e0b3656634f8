// SPDX-License-Identifier: Apache-2.0

// The kernels' names of element types, and of what a route does to its elements.
#ifndef WAYBILL_CORE_STAGE_CAST_OF_H_
#define WAYBILL_CORE_STAGE_CAST_OF_H_

#include <optional>

#include "core/plan/route_table.h"
#include "core/tensor/dtype.h"
#include "kernels/elements.h"

namespace waybill {

// Returns the type, or nothing if the kernels do not compute with it.
constexpr std::optional<kernels::Wide> WideOf(Dtype dtype) {
  if (dtype == Dtype::kF32) return kernels::Wide::kF32;
  if (dtype == Dtype::kF16) return kernels::Wide::kF16;
  if (dtype == Dtype::kBf16) return kernels::Wide::kBf16;
  return std::nullopt;
}

// Returns the cast, or nothing if elements stay as they are or are quantised.
constexpr std::optional<kernels::Cast> CastOf(Transform transform) {
  switch (transform) {
    case Transform::kNone:
    case Transform::kQuantise:
      break;
    case Transform::kF32ToBf16:
      return kernels::Cast::kF32ToBf16;
    case Transform::kF32ToF16:
      return kernels::Cast::kF32ToF16;
    case Transform::kBf16ToF32:
      return kernels::Cast::kBf16ToF32;
    case Transform::kF16ToF32:
      return kernels::Cast::kF16ToF32;
    case Transform::kBf16ToF16:
      return kernels::Cast::kBf16ToF16;
  }
  return std::nullopt;
}

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_CAST_OF_H_
