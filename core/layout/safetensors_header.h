// SPDX-License-Identifier: Apache-2.0

// Parses the JSON header of a safetensors file. Used by safetensors.cc only.
#ifndef WAYBILL_CORE_LAYOUT_SAFETENSORS_HEADER_H_
#define WAYBILL_CORE_LAYOUT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/dtype.h"

namespace waybill {

// Bytes [begin, end) of the data, as the header has them: nothing is checked against anything.
struct HeaderEntry {
  std::string name;
  Dtype dtype = Dtype::kBf16;
  std::vector<int64_t> shape;  // Not negative, at most kMaxDimensions.
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Returns the entries in the header's order, without __metadata__. kInvalidArgument: not JSON, a
// name twice, an unknown dtype, a field missing or of another kind; says where.
absl::StatusOr<std::vector<HeaderEntry>> ParseSafetensorsHeader(absl::string_view json);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_SAFETENSORS_HEADER_H_
