// SPDX-License-Identifier: Apache-2.0

// The contiguous runs of bytes that a strided array consists of.
#ifndef WAYBILL_CORE_TENSOR_RUNS_H_
#define WAYBILL_CORE_TENSOR_RUNS_H_

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor/box.h"

namespace waybill {

// Calls visit(offset_bytes, size_bytes) for each run, in the order of memory where the strides
// allow it: dimensions are walked from the largest stride to the smallest, and those that continue
// one another are merged. Nothing for an empty array.
template <typename Visit>
void ForEachRun(absl::Span<const int64_t> extents, absl::Span<const int64_t> strides,
                uint32_t element_bytes, Visit visit) {
  struct Axis {
    int64_t extent;
    int64_t stride;
  };
  std::array<Axis, kMaxDimensions> axes;
  size_t count = 0;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] <= 0) return;
    if (extents[d] == 1) continue;
    size_t at = count++;
    for (; at > 0 && axes[at - 1].stride < strides[d]; --at) axes[at] = axes[at - 1];
    axes[at] = {extents[d], strides[d]};
  }
  int64_t run = 1;
  while (count > 0 && axes[count - 1].stride == run) run *= axes[--count].extent;

  std::array<int64_t, kMaxDimensions> index{};
  int64_t offset = 0;
  const auto bytes = static_cast<int64_t>(element_bytes);
  while (true) {
    visit(static_cast<uint64_t>(offset * bytes), static_cast<uint64_t>(run * bytes));
    size_t d = count;
    while (d > 0) {
      --d;
      offset += axes[d].stride;
      if (++index[d] < axes[d].extent) break;
      offset -= axes[d].stride * axes[d].extent;
      index[d] = 0;
      if (d == 0) return;
    }
    if (count == 0) return;
  }
}

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_RUNS_H_
