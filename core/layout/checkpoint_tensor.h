// SPDX-License-Identifier: Apache-2.0

// One tensor of a checkpoint.
#ifndef WAYBILL_CORE_LAYOUT_CHECKPOINT_TENSOR_H_
#define WAYBILL_CORE_LAYOUT_CHECKPOINT_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/dtype.h"

namespace waybill {

// Layouts read names, dtypes and shapes only: for them `data` may be empty.
struct CheckpointTensor {
  std::string name;
  Dtype dtype = Dtype::kBf16;
  std::vector<int64_t> shape;
  absl::Span<const std::byte> data;  // Row-major, at any alignment.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_CHECKPOINT_TENSOR_H_
