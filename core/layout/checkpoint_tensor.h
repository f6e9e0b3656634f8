// SPDX-License-Identifier: Apache-2.0

// One tensor of a checkpoint.
#ifndef WAYBILL_CORE_LAYOUT_CHECKPOINT_TENSOR_H_
#define WAYBILL_CORE_LAYOUT_CHECKPOINT_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"

namespace waybill {

// Layouts read names, dtypes and shapes only: for them `data` may be empty.
struct CheckpointTensor {
  std::string name;
  Dtype dtype = Dtype::kBf16;
  std::vector<int64_t> shape;
  absl::Span<const std::byte> data;  // Row-major, at any alignment.

  // The size of its elements, whether or not there is `data`.
  uint64_t size_bytes() const {
    return static_cast<uint64_t>(Box::Whole(shape).element_count()) * SizeBytes(dtype);
  }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_CHECKPOINT_TENSOR_H_
