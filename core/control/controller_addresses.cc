// SPDX-License-Identifier: Apache-2.0

#include "core/control/controller_addresses.h"

#include "absl/strings/str_split.h"
#include "core/net/tcp_socket.h"

namespace waybill {

std::vector<std::string> SplitAddresses(absl::string_view text) {
  std::vector<std::string> addresses = absl::StrSplit(text, ',', absl::SkipWhitespace());
  if (addresses.empty()) addresses.emplace_back();
  return addresses;
}

absl::StatusOr<std::string> OwnAddressTowardsControllers(absl::string_view text) {
  absl::StatusOr<std::string> own;
  for (const std::string& controller : SplitAddresses(text)) {
    const absl::StatusOr<net::HostPort> address = net::ParseHostPort(controller);
    if (!address.ok()) return address.status();
    own = net::OwnAddressTowards(address->host);
    if (own.ok()) break;
  }
  return own;
}

}  // namespace waybill
