// SPDX-License-Identifier: Apache-2.0

// Single indices of a box.
#ifndef WAYBILL_CORE_TENSOR_BOX_INDEX_H_
#define WAYBILL_CORE_TENSOR_BOX_INDEX_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor/box.h"

namespace waybill {

// The box of the one element at `index`.
inline Box OneAt(absl::Span<const int64_t> index) {
  Box one(index, index);
  for (int d = 0; d < one.dimensions(); ++d) one.Set(d, one.begin(d), one.begin(d) + 1);
  return one;
}

// How many elements of `box` come before the one at `index`, the last dimension fastest.
inline int64_t RowMajorIndex(const Box& box, absl::Span<const int64_t> index) {
  int64_t before = 0;
  for (int d = 0; d < box.dimensions(); ++d) {
    before = before * box.extent(d) + index[static_cast<size_t>(d)] - box.begin(d);
  }
  return before;
}

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_BOX_INDEX_H_
