// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/dtype.h"

#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

struct Row {
  Dtype dtype;
  uint32_t size_bytes;
  absl::string_view name;
};

constexpr Row kRows[] = {
    {Dtype::kF32, 4, "F32"},        {Dtype::kF16, 2, "F16"},        {Dtype::kBf16, 2, "BF16"},
    {Dtype::kF8E4m3, 1, "F8_E4M3"}, {Dtype::kF8E5m2, 1, "F8_E5M2"}, {Dtype::kE8m0, 1, "F8_E8M0"},
    {Dtype::kI8, 1, "I8"},          {Dtype::kU8, 1, "U8"},          {Dtype::kI16, 2, "I16"},
    {Dtype::kU16, 2, "U16"},        {Dtype::kI32, 4, "I32"},        {Dtype::kU32, 4, "U32"},
    {Dtype::kI64, 8, "I64"},        {Dtype::kU64, 8, "U64"},        {Dtype::kF64, 8, "F64"},
    {Dtype::kBool, 1, "BOOL"},
};

const Row* Find(Dtype dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

}  // namespace

uint32_t SizeBytes(Dtype dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? 0 : row->size_bytes;
}

bool AreSameBytes(Dtype source, Dtype destination) {
  const auto is_float = [](Dtype dtype) {
    return dtype == Dtype::kE8m0 || dtype == Dtype::kF8E4m3 || dtype == Dtype::kF8E5m2;
  };
  if (source == Dtype::kU8) return destination == Dtype::kU8 || is_float(destination);
  return source == destination ||
         (destination == Dtype::kU8 && (is_float(source) || source == Dtype::kBool));
}

absl::string_view Name(Dtype dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? "unknown" : row->name;
}

absl::StatusOr<Dtype> ParseDtype(absl::string_view name) {
  std::string known;
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype \"", name, "\" is not one of ", known));
}

absl::StatusOr<Dtype> DtypeFromNumber(uint32_t number) {
  const auto dtype = static_cast<Dtype>(number);
  if (number > 0xFF || Find(dtype) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype number ", number, " is not one of 1 to ", std::size(kRows)));
  }
  return dtype;
}

}  // namespace waybill
