// SPDX-License-Identifier: Apache-2.0

#include "capi/call.h"

#include <cstring>

#include "core/base/plain_text.h"

namespace waybill::capi {

waybill_status_t Report(absl::Status status, waybill_error_t** error) noexcept {
  const auto code = static_cast<waybill_status_t>(status.code());
  if (error == nullptr) return code;
  try {
    *error = MakeHandle(std::make_shared<Error>(std::move(status)));
  } catch (const std::exception&) {
    *error = nullptr;  // No memory for it either.
  }
  return code;
}

absl::StatusOr<std::string> Text(const char* text, absl::string_view name) {
  std::string result = text == nullptr ? "" : text;
  if (!IsUtf8(result)) return absl::InvalidArgumentError(absl::StrCat(name, " is not UTF-8"));
  return result;
}

}  // namespace waybill::capi

using waybill::capi::Blob;
using waybill::capi::DestroyObject;
using waybill::capi::Error;
using waybill::capi::FindObject;

waybill_status_t waybill_error_code(const waybill_error_t* error) {
  const auto found = FindObject<Error>(error);
  return found == nullptr ? WAYBILL_INVALID_ARGUMENT
                          : static_cast<waybill_status_t>(found->status().code());
}

// The pointer outlives `found`: the table has the object until the error is destroyed.
const char* waybill_error_message(const waybill_error_t* error) {
  const auto found = FindObject<Error>(error);
  return found == nullptr ? "" : found->message();
}

uint32_t waybill_error_scope(const waybill_error_t* error) {
  const auto found = FindObject<Error>(error);
  return found == nullptr ? uint32_t{WAYBILL_SCOPE_CALL}
                          : static_cast<uint32_t>(waybill::ScopeOf(found->status()));
}

void waybill_error_destroy(waybill_error_t* error) { DestroyObject<Error>(error); }

const void* waybill_blob_data(const waybill_blob_t* blob) {
  const auto found = FindObject<Blob>(blob);
  return found == nullptr ? nullptr : found->bytes().c_str();
}

size_t waybill_blob_size(const waybill_blob_t* blob) {
  const auto found = FindObject<Blob>(blob);
  return found == nullptr ? 0 : found->bytes().size();
}

void waybill_blob_destroy(waybill_blob_t* blob) { DestroyObject<Blob>(blob); }
