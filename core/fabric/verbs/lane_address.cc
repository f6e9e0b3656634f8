// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/lane_address.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace waybill::verbs {
namespace {

constexpr auto kMostKind = static_cast<uint32_t>(GidKind::kRoceV2);
constexpr uint32_t kMost24Bits = 0xFF'FFFF;

bool ParseHex(absl::string_view text, uint32_t most, uint32_t& value) {
  return absl::SimpleHexAtoi(text, &value) && value <= most;
}

bool ParseGid(absl::string_view text, Gid& gid) {
  const bool digits =
      text.size() == 2 * gid.size() && std::all_of(text.begin(), text.end(), [](char c) {
        return absl::ascii_isxdigit(static_cast<unsigned char>(c));
      });
  if (!digits) return false;
  const std::string bytes = absl::HexStringToBytes(text);
  std::memcpy(gid.data(), bytes.data(), gid.size());
  return true;
}

}  // namespace

absl::string_view Name(GidKind kind) {
  return kind == GidKind::kInfiniBand ? "InfiniBand"
         : kind == GidKind::kRoceV1   ? "RoCE v1"
                                      : "RoCE v2";
}

std::string ToString(const LaneAddress& address) {
  const absl::string_view gid(reinterpret_cast<const char*>(address.gid.data()),
                              address.gid.size());
  return absl::StrCat(absl::Hex(address.queue_pair), ",", absl::Hex(address.first_packet), ",",
                      absl::Hex(address.mtu), ",", absl::Hex(address.lid), ",",
                      absl::BytesToHexString(gid), ",", static_cast<int>(address.kind), ",",
                      address.nic, ",", address.rendezvous);
}

absl::StatusOr<LaneAddress> ParseLaneAddress(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(',', 7));
  LaneAddress address;
  uint32_t lid = 0;
  uint32_t kind = 0;
  if (parts.size() != 8 || !ParseHex(parts[0], kMost24Bits, address.queue_pair) ||
      !ParseHex(parts[1], kMost24Bits, address.first_packet) ||
      !ParseHex(parts[2], 5, address.mtu) || address.mtu == 0 || !ParseHex(parts[3], 0xFFFF, lid) ||
      !ParseGid(parts[4], address.gid) || !ParseHex(parts[5], kMostKind, kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text.substr(0, 200), "\" is no address of a verbs lane"));
  }
  address.lid = static_cast<uint16_t>(lid);
  address.kind = GidKind{static_cast<uint8_t>(kind)};
  address.nic = std::string(parts[6]);
  address.rendezvous = std::string(parts[7]);
  return address;
}

std::string ToString(const Gid& gid) {
  constexpr Gid kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  if (std::equal(gid.begin(), gid.begin() + 12, kMapped.begin())) {
    return absl::StrFormat("%d.%d.%d.%d", gid[12], gid[13], gid[14], gid[15]);
  }
  std::string text;
  for (size_t i = 0; i < gid.size(); i += 2) {
    absl::StrAppend(&text, i == 0 ? "" : ":", absl::Hex(gid[i] << 8 | gid[i + 1]));
  }
  return text;
}

}  // namespace waybill::verbs
