#include "capi/call.h"

#include <cstring>

namespace waybill::capi {
namespace {

bool IsUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t more = lead < 0x80 ? 0 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || i + more >= text.size()) return false;
    uint32_t code = more == 0 ? lead : lead & (0x3Fu >> more);
    for (size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<uint8_t>(text[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3F);
    }
    constexpr uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
    if (code < kSmallest[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return false;
    }
    i += more + 1;
  }
  return true;
}

}  // namespace

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
