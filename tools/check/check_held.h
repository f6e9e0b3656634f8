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
#include "tools/check/quantised.h"

namespace waybill::check {

// A parameter as it lies in a worker's memory: dense and row-major.
struct HeldParameter {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;

  // Of E4M3 elements: how they were quantised, and the scales beside them, by rows of scales.
  const Quantising* quantising = nullptr;
  const std::byte* scales = nullptr;
  std::vector<int64_t> scales_shape = {};
};

// Every element of every parameter, and every scale, against its value in `version` (see change.h).
// The number of elements compared.
//
// kDataLoss: names the first wrong element, with what it is and what it should be.
absl::StatusOr<uint64_t> CheckHeld(const StoredCheckpoint& checkpoint,
                                   absl::Span<const HeldParameter> parameters, uint64_t version,
                                   int64_t tp, int64_t tp_rank);

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_CHECK_HELD_H_
