// SPDX-License-Identifier: Apache-2.0

// Checks what a worker holds against the checkpoint, element by element.
#ifndef WAYBILL_TOOLS_CHECK_CHECK_HELD_H_
#define WAYBILL_TOOLS_CHECK_CHECK_HELD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tools/check/checkpoint_reader.h"
#include "tools/check/expected_rows.h"
#include "tools/check/quantised.h"

namespace waybill::check {

// A parameter in a worker's memory. Dense and row-major.
struct HeldParameter {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;

  // For E4M3 elements: how they were quantised, and their scales, row by row.
  const Quantising* quantising = nullptr;
  const std::byte* scales = nullptr;
  std::vector<int64_t> scales_shape = {};
};

// Compares every element and every scale of the parameters with its value in `version` (see
// change.h). Returns the number of elements compared.
//
// kDataLoss: an element is wrong. The message names the first one, its value and the expected
// value.
absl::StatusOr<uint64_t> CheckHeld(const StoredCheckpoint& checkpoint,
                                   absl::Span<const HeldParameter> parameters,
                                   const WeightVersion& version, const EngineRank& at);

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_CHECK_HELD_H_
