// SPDX-License-Identifier: Apache-2.0

#include "core/base/trace_parent.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

constexpr size_t kLength = 55;  // The length of a traceparent of version 00.

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');  // Upper case is not allowed.
  });
}

bool IsZero(absl::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

}  // namespace

absl::StatusOr<TraceParent> ParseTraceParent(absl::string_view text) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "read a traceparent: \"", absl::CHexEscape(text.substr(0, 2 * kLength)), "\" ", why,
        "; a traceparent is VERSION-TRACE-SPAN-FLAGS in 2, 32, 16 and 2 "
        "hexadecimal digits of lower case"));
  };
  if (text.size() < kLength) return bad(absl::StrCat("has ", text.size(), " characters, not 55"));
  const absl::string_view version = text.substr(0, 2), trace = text.substr(3, 32),
                          span = text.substr(36, 16), flags = text.substr(53, 2);
  if (text[2] != '-' || text[35] != '-' || text[52] != '-' || !IsHex(version) || !IsHex(trace) ||
      !IsHex(span) || !IsHex(flags)) {
    return bad("has other characters");
  }
  if (version == "ff") return bad("has the version ff, which is invalid");
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) {
    return bad("has characters after the flags");
  }
  TraceParent parent = {absl::HexStringToBytes(trace), absl::HexStringToBytes(span),
                        (absl::HexStringToBytes(flags)[0] & 1) != 0};
  if (IsZero(parent.trace_id) || IsZero(parent.span_id)) return bad("has an id of zeros");
  return parent;
}

}  // namespace waybill
