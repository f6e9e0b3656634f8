// SPDX-License-Identifier: Apache-2.0

#include "tools/check/check_held.h"

#include <cstring>
#include <memory>

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
                    int64_t columns, const WeightVersion& version) {
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
    if (stored_bytes == 2 && held_bytes == 4) expected <<= 16;  // BF16 as F32.
    const uint64_t found = Load(held + c * held_bytes, held_bytes);
    if (found != expected) return {c, found, expected};
  }
  return {};
}

// Of all matrices that are stacked.
int64_t RowsOf(const std::vector<int64_t>& shape) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
  return rows;
}

// A quantised parameter row by row, with the scales of each row. Scales of fused parts lie one
// below the other: another part, or another row of cells, is the next row of scales.
class QuantisedCheck {
 public:
  QuantisedCheck(const HeldParameter& parameter, const WeightVersion& version)
      : parameter_(parameter),
        version_(version),
        columns_(parameter.shape.back()),
        codes_(static_cast<size_t>(columns_)) {}

  absl::Status Run(const RowFunction& row_of) {
    for (int64_t r = 0; r < RowsOf(parameter_.shape); ++r) {
      const ExpectedRow row = row_of(r);
      if (row.tensor == nullptr || row.step != 1) {
        return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter_.name,
                                                       "\" is quantised, and row ", r,
                                                       " is not a row of a tensor"));
      }
      const QuantisedTensor& expected = TensorOf(*row.tensor);
      expected.Codes(row.first, columns_, codes_.data());
      for (int64_t c = 0; c < columns_; ++c) {
        const auto found = static_cast<uint8_t>(parameter_.data[r * columns_ + c]);
        const uint8_t code = codes_[static_cast<size_t>(c)];
        if (found != code) return Wrong("row ", r, c, found, code);
      }
      const int64_t cell_row = expected.CellRow(row.first);
      if (row.tensor == last_ && cell_row == last_cell_row_) continue;
      last_ = row.tensor;
      last_cell_row_ = cell_row;
      if (absl::Status status = CheckScales(expected, row.first); !status.ok()) return status;
    }
    if (scale_row_ == RowsOf(parameter_.scales_shape)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("parameter \"", parameter_.name, "\" has ",
                                            RowsOf(parameter_.scales_shape),
                                            " rows of scales, not ", scale_row_));
  }

 private:
  const QuantisedTensor& TensorOf(const StoredTensor& tensor) {
    if (quantised_ == nullptr || tensor_ != &tensor) {
      tensor_ = &tensor;
      quantised_ = std::make_unique<QuantisedTensor>(tensor, version_, *parameter_.quantising);
    }
    return *quantised_;
  }

  absl::Status CheckScales(const QuantisedTensor& expected, int64_t first) {
    const int64_t row = scale_row_++, count = parameter_.scales_shape.back();
    const uint32_t bytes = parameter_.quantising->mx ? 1 : 4;
    int64_t at = -1, last_cell = -1;
    for (int64_t c = 0; c < columns_; ++c) {
      const int64_t cell = expected.CellColumn(first + c);
      if (cell == last_cell) continue;
      last_cell = cell;
      if (++at == count || row >= RowsOf(parameter_.scales_shape)) break;
      const uint64_t found = Load(parameter_.scales + (row * count + at) * bytes, bytes);
      const uint64_t bits = expected.ScaleBits(first + c);
      if (found != bits) return Wrong("scale row ", row, at, found, bits);
    }
    if (at + 1 == count) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("parameter \"", parameter_.name, "\" has ", count,
                                            " scales in a row, and other blocks than that"));
  }

  absl::Status Wrong(absl::string_view what, int64_t row, int64_t column, uint64_t found,
                     uint64_t expected) const {
    return absl::DataLossError(absl::StrCat(
        "version ", version_.number, ": parameter \"", parameter_.name, "\" ", what, row,
        " column ", column, " is 0x", absl::Hex(found), ", should be 0x", absl::Hex(expected)));
  }

  const HeldParameter& parameter_;
  const WeightVersion version_;
  const int64_t columns_;
  std::vector<uint8_t> codes_;
  const StoredTensor* tensor_ = nullptr;
  std::unique_ptr<QuantisedTensor> quantised_;
  int64_t scale_row_ = 0;
  const StoredTensor* last_ = nullptr;
  int64_t last_cell_row_ = -1;
};

}  // namespace

absl::StatusOr<uint64_t> CheckHeld(const StoredCheckpoint& checkpoint,
                                   absl::Span<const HeldParameter> parameters,
                                   const WeightVersion& version, const EngineRank& at) {
  uint64_t compared = 0;
  for (const HeldParameter& parameter : parameters) {
    WAYBILL_ASSIGN_OR_RETURN(const RowFunction row_of,
                             ExpectedRows(checkpoint, parameter.name, parameter.shape, at));
    const int64_t columns = parameter.shape.size() > 1 ? parameter.shape.back() : 1;
    int64_t elements = 1;
    for (const int64_t extent : parameter.shape) elements *= extent;
    if (parameter.quantising != nullptr) {
      WAYBILL_RETURN_IF_ERROR(QuantisedCheck(parameter, version).Run(row_of));
      compared += static_cast<uint64_t>(elements);
      continue;
    }
    const uint32_t bytes = BytesOf(parameter.dtype);
    for (int64_t row = 0; columns > 0 && row < elements / columns; ++row) {
      const Mismatch wrong =
          CompareRow(row_of(row), parameter.data + row * columns * bytes, bytes, columns, version);
      if (wrong.column >= 0) {
        return absl::DataLossError(absl::StrCat("version ", version.number, ": parameter \"",
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
