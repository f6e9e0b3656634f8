// SPDX-License-Identifier: Apache-2.0

// Says where each row of a worker's parameter comes from, by the model's definition.
//
// It uses nothing of core/layout, core/plan and core/stage, because it checks them. A presubmit
// test enforces that.
#ifndef WAYBILL_TOOLS_CHECK_EXPECTED_ROWS_H_
#define WAYBILL_TOOLS_CHECK_EXPECTED_ROWS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/check/checkpoint_reader.h"

namespace waybill::check {

// Which rank of which engine holds the parameters. An engine has tp * dp ranks, numbered with tp
// fastest. `ep` of them, or all as one, divide the experts.
struct EngineRank {
  int64_t tp = 1;
  int64_t dp = 1;
  int64_t ep = 1;
  int64_t rank = 0;
  bool sglang = false;  // Else vLLM.
};

// Element c of the row is element first + c * step of the tensor, or zero if there is no tensor.
struct ExpectedRow {
  const StoredTensor* tensor = nullptr;
  int64_t first = 0;
  int64_t step = 1;
};

// Returns one row of a parameter. Rows are numbered over all dimensions but the last. Each element
// of a vector is a row.
using RowFunction = std::function<ExpectedRow(int64_t row)>;

// Returns the rows of `parameter`. kInvalidArgument: the checkpoint has no tensors for it.
absl::StatusOr<RowFunction> ExpectedRows(const StoredCheckpoint& checkpoint,
                                         const std::string& parameter,
                                         const std::vector<int64_t>& shape, const EngineRank& at);

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_EXPECTED_ROWS_H_
