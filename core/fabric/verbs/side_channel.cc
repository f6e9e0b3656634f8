// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/side_channel.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/net/tcp_socket.h"

namespace waybill::verbs {
namespace {

struct FrameHeader {
  FrameKind kind;
  uint32_t body_bytes;
};
constexpr uint32_t kMostBodyBytes = 64 << 10;

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

absl::Status SideChannel::Send(FrameKind kind, absl::string_view body) {
  body = body.substr(0, kMostBodyBytes);
  const FrameHeader header{kind, static_cast<uint32_t>(body.size())};
  unsent_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  unsent_.append(body.data(), body.size());
  return Flush();
}

absl::Status SideChannel::Flush() {
  while (!unsent_.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(const size_t sent, net::Send(socket_.get(), BytesOf(unsent_)));
    if (sent == 0) break;
    unsent_.erase(0, sent);
  }
  return absl::OkStatus();
}

absl::Status SideChannel::Read(std::vector<Frame>& frames) {
  std::array<std::byte, 4096> buffer;
  absl::Status end;
  while (end.ok()) {
    const absl::StatusOr<size_t> size = net::Receive(socket_.get(), absl::MakeSpan(buffer));
    if (size.ok() && *size == 0) break;
    end = size.status();
    if (size.ok()) received_.append(reinterpret_cast<const char*>(buffer.data()), *size);
  }
  // Bytes that came before the end still count.
  size_t at = 0;
  FrameHeader header;
  while (received_.size() - at >= sizeof(header)) {
    std::memcpy(&header, received_.data() + at, sizeof(header));
    if (header.body_bytes > kMostBodyBytes) {
      return absl::DataLossError(absl::StrCat("a frame of ", header.body_bytes, " bytes; ",
                                              kMostBodyBytes, " are allowed"));
    }
    if (received_.size() - at < sizeof(header) + header.body_bytes) break;
    frames.push_back({header.kind, received_.substr(at + sizeof(header), header.body_bytes)});
    at += sizeof(header) + header.body_bytes;
  }
  received_.erase(0, at);
  return end;
}

}  // namespace waybill::verbs
