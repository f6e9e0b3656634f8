#include "tools/check/check_held.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "tools/check/change.h"
#include "tools/check/expected_rows.h"

namespace waybill::check {
namespace {

uint32_t BytesOf(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  return 1;
}

uint64_t Load(const std::byte* at, uint32_t bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, bytes);
  return bits;
}

// To the nearest, of two as near the even one; the weights are finite.
uint64_t Bf16Of(uint64_t f32_bits) {
  const uint64_t below = f32_bits & 0xFFFF, high = f32_bits >> 16;
  return high + (below > 0x8000 || (below == 0x8000 && (high & 1) != 0) ? 1 : 0);
}

struct Mismatch {
  int64_t column = -1;
  uint64_t found = 0;
  uint64_t expected = 0;
};

// The first element of a row that is wrong; column -1 where none is.
Mismatch CompareRow(const ExpectedRow& row, const std::byte* held, uint32_t held_bytes,
                    int64_t columns, uint64_t version) {
  if (row.tensor == nullptr) {
    for (int64_t c = 0; c < columns; ++c) {
      const uint64_t found = Load(held + c * held_bytes, held_bytes);
      if (found != 0) return {c, found, 0};
    }
    return {};
  }
  const uint32_t stored_bytes = BytesOf(row.tensor->dtype);
  const uint64_t mask = BitsThatChange(stored_bytes);
  const ChangeKey key = KeyOf(version, row.tensor->name);
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t element = row.first + c * row.step;
    uint64_t expected = Load(row.tensor->data + element * stored_bytes, stored_bytes) ^
                        (Change(key, static_cast<uint64_t>(element)) & mask);
    if (stored_bytes == 4 && held_bytes == 2) expected = Bf16Of(expected);
    const uint64_t found = Load(held + c * held_bytes, held_bytes);
    if (found != expected) return {c, found, expected};
  }
  return {};
}

}  // namespace

absl::StatusOr<uint64_t> CheckHeld(const StoredCheckpoint& checkpoint,
                                   absl::Span<const HeldParameter> parameters, uint64_t version,
                                   int64_t tp, int64_t tp_rank) {
  uint64_t compared = 0;
  for (const HeldParameter& parameter : parameters) {
    WAYBILL_ASSIGN_OR_RETURN(const RowFunction row_of, ExpectedRows(checkpoint, parameter.name,
                                                                    parameter.shape, tp, tp_rank));
    const int64_t columns = parameter.shape.size() > 1 ? parameter.shape.back() : 1;
    int64_t elements = 1;
    for (const int64_t extent : parameter.shape) elements *= extent;
    const uint32_t bytes = BytesOf(parameter.dtype);
    for (int64_t row = 0; columns > 0 && row < elements / columns; ++row) {
      const Mismatch wrong =
          CompareRow(row_of(row), parameter.data + row * columns * bytes, bytes, columns, version);
      if (wrong.column >= 0) {
        return absl::DataLossError(absl::StrCat("version ", version, ": parameter \"",
                                                parameter.name, "\" row ", row, " column ",
                                                wrong.column, " is 0x", absl::Hex(wrong.found),
                                                ", should be 0x", absl::Hex(wrong.expected)));
      }
    }
    compared += static_cast<uint64_t>(elements);
  }
  return compared;
}

}  // namespace waybill::check
