// SPDX-License-Identifier: Apache-2.0

// How elements are quantised once their factor is known.

#ifndef KERNELS_QUANTISE_RULE_H_
#define KERNELS_QUANTISE_RULE_H_

#include "kernels/elements.h"
#include "kernels/scale.h"

namespace waybill::kernels {

struct QuantiseRule {
  Wide type = Wide::kBf16;  // The type of the source.
  Wide via = Wide::kBf16;   // The type to which elements are rounded first; as in CombineMaxima.
  Narrow to = Narrow::kE4m3;
  Division division = Division::kMultiplyByReciprocal;
};

}  // namespace waybill::kernels

#endif  // KERNELS_QUANTISE_RULE_H_
