// Where each row of a worker's parameter comes from: worked out from the model's definition, row by
// row.
//
// Uses none of core/layout, core/plan or core/stage: what they do is what this checks. A presubmit
// test holds it to that.
#ifndef WAYBILL_TOOLS_CHECK_EXPECTED_ROWS_H_
#define WAYBILL_TOOLS_CHECK_EXPECTED_ROWS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/check/checkpoint_reader.h"

namespace waybill::check {

// Element c of the row is element first + c * step of the tensor; zeros where there is no tensor.
struct ExpectedRow {
  const StoredTensor* tensor = nullptr;
  int64_t first = 0;
  int64_t step = 1;
};

// Of one parameter. Rows count over all dimensions but the last; a vector is a column: its rows are
// its elements.
using RowFunction = std::function<ExpectedRow(int64_t row)>;

// kInvalidArgument: the checkpoint has nothing that such a parameter could be made of.
absl::StatusOr<RowFunction> ExpectedRows(const StoredCheckpoint& checkpoint,
                                         const std::string& parameter,
                                         const std::vector<int64_t>& shape, int64_t tp,
                                         int64_t tp_rank);

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_EXPECTED_ROWS_H_
