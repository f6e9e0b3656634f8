// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/lane_address.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill::tcp {

std::string ToString(const LaneAddress& address) {
  return absl::StrCat(net::ToString(address.listener), "/",
                      absl::string_view(address.secret.data(), address.secret.size()));
}

absl::StatusOr<LaneAddress> ParseLaneAddress(absl::string_view text) {
  LaneAddress address;
  const size_t slash = text.rfind('/');
  if (slash == absl::string_view::npos || text.size() - slash - 1 != address.secret.size() ||
      !std::all_of(text.begin() + static_cast<std::ptrdiff_t>(slash) + 1, text.end(),
                   [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not the address of a tcp lane, HOST:PORT/SECRET"));
  }
  WAYBILL_ASSIGN_OR_RETURN(address.listener, net::ParseHostPort(text.substr(0, slash)));
  std::copy(text.begin() + static_cast<std::ptrdiff_t>(slash) + 1, text.end(),
            address.secret.begin());
  return address;
}

absl::StatusOr<Secret> NewSecret() {
  WAYBILL_ASSIGN_OR_RETURN(const std::string digits, net::RandomSecret());
  Secret secret;
  std::copy_n(digits.begin(), secret.size(), secret.begin());
  return secret;
}

bool Same(const Secret& a, const Secret& b) {
  int difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace waybill::tcp
