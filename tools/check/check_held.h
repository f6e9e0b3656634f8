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

namespace waybill::check {

// A parameter as it lies in a worker's memory: dense and row-major.
struct HeldParameter {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
};

// Every element of every parameter against its value in `version` (see change.h). The number of
// elements compared.
//
// kDataLoss: names the first wrong element, with what it is and what it should be.
absl::StatusOr<uint64_t> CheckHeld(const StoredCheckpoint& checkpoint,
                                   absl::Span<const HeldParameter> parameters, uint64_t version,
                                   int64_t tp, int64_t tp_rank);

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_CHECK_HELD_H_
