// SPDX-License-Identifier: Apache-2.0

#include "capi/quantisation.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "capi/call.h"
#include "capi/struct_size.h"

namespace waybill::capi {
namespace {

constexpr uint32_t kWholeMatrix = UINT32_MAX;

uint32_t BlockFrom(uint32_t given, uint32_t by_default) {
  return given == 0 ? by_default : given == kWholeMatrix ? 0 : given;
}
uint32_t BlockTo(uint32_t block) { return block == 0 ? kWholeMatrix : block; }

absl::StatusOr<Dtype> DtypeOr(uint32_t number, Dtype by_default) {
  return number == 0 ? by_default : DtypeFromNumber(number);
}

}  // namespace

absl::StatusOr<Quantisation> ReadQuantisation(const waybill_quantisation_t* given) {
  WAYBILL_ASSIGN_OR_RETURN(const waybill_quantisation_t read, ReadStruct(given, "quantisation"));
  Quantisation q;
  WAYBILL_ASSIGN_OR_RETURN(q.dtype, DtypeOr(read.dtype, q.dtype));
  WAYBILL_ASSIGN_OR_RETURN(q.from, DtypeOr(read.from_dtype, q.from));
  WAYBILL_ASSIGN_OR_RETURN(q.scale_dtype, DtypeOr(read.scale_dtype, q.scale_dtype));
  constexpr uint32_t kLast = 3;
  if (read.rounding > kLast || read.division > kLast || read.stores_reciprocal > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "quantisation: rounding ", read.rounding, ", division ", read.division,
        ", stores_reciprocal ", read.stores_reciprocal, ": the largest are 3, 3 and 1"));
  }
  if (read.rounding != 0) q.rounding = static_cast<ScaleRounding>(read.rounding);
  if (read.division != 0) q.division = static_cast<Division>(read.division);
  q.stores_reciprocal = read.stores_reciprocal != 0;
  if (!std::isfinite(read.epsilon)) {
    return absl::InvalidArgumentError("quantisation: epsilon is not finite");
  }
  if (read.epsilon != 0) q.epsilon = read.epsilon < 0 ? 0 : read.epsilon;
  q.block_rows = BlockFrom(read.block_rows, q.block_rows);
  q.block_columns = BlockFrom(read.block_columns, q.block_columns);
  q.scale_rows = read.scale_rows;
  q.scale_columns = read.scale_columns;
  WAYBILL_RETURN_IF_ERROR(CheckQuantisation(q));
  return q;
}

}  // namespace waybill::capi

waybill_status_t waybill_quantisation_named(const char* name,
                                            waybill_quantisation_t* out_quantisation,
                                            waybill_error_t** error) {
  using waybill::capi::BlockTo;
  return waybill::capi::Call("look up a quantisation", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(waybill::capi::CheckStructSize(out_quantisation, "out_quantisation"));
    WAYBILL_ASSIGN_OR_RETURN(const std::string text, waybill::capi::Text(name, "name"));
    WAYBILL_ASSIGN_OR_RETURN(const waybill::Quantisation q, waybill::NamedQuantisation(text));
    waybill_quantisation_t out = WAYBILL_QUANTISATION_INIT;
    out.dtype = static_cast<uint32_t>(q.dtype);
    out.from_dtype = static_cast<uint32_t>(q.from);
    out.scale_dtype = static_cast<uint32_t>(q.scale_dtype);
    out.rounding = static_cast<uint32_t>(q.rounding);
    out.division = static_cast<uint32_t>(q.division);
    out.stores_reciprocal = q.stores_reciprocal ? 1 : 0;
    out.epsilon = q.epsilon == 0 ? -1.0f : q.epsilon;
    out.block_rows = BlockTo(q.block_rows);
    out.block_columns = BlockTo(q.block_columns);
    out.scale_rows = q.scale_rows;
    out.scale_columns = q.scale_columns;
    waybill::capi::WriteStruct(out, out_quantisation);
    return absl::OkStatus();
  });
}
