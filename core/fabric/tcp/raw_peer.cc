// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/raw_peer.h"

#include <linux/filter.h>
#include <poll.h>
#include <sys/socket.h>

namespace waybill::tcp {

RawPeer::RawPeer(absl::string_view lane_address)
    : peer_(*ParseLaneAddress(lane_address)),
      listener_(*net::Listen({.host = "127.0.0.1"})),
      own_{listener_.address, *NewSecret()},
      socket_(*net::BeginConnect(peer_.listener)) {
  pollfd ready{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  poll(&ready, 1, 10'000);
}

std::string RawPeer::address() const { return ToString(own_); }

Hello RawPeer::GoodHello() const { return {.wanted_lane = peer_.secret, .own_lane = own_.secret}; }

bool RawPeer::Join(DrivenFabric& fabric, LaneId lane) {
  if (!fabric->ConnectLane(lane, address()).ok() || !Say(GoodHello(), fabric)) return false;
  const std::optional<Frame> welcome = Hear(fabric);
  return welcome && welcome->kind == FrameKind::kWelcome;
}

bool RawPeer::Send(absl::Span<const std::byte> bytes, DrivenFabric& fabric) {
  return Until(
             [&] {
               const absl::StatusOr<size_t> sent = net::Send(socket_.get(), bytes);
               if (!sent.ok()) socket_.Reset();
               if (sent.ok()) bytes.remove_prefix(*sent);
               return bytes.empty() || !socket_.valid();
             },
             fabric) &&
         socket_.valid();
}

bool RawPeer::Receive(absl::Span<std::byte> bytes, DrivenFabric& fabric) {
  bool is_closed = false;
  return Until(
             [&] {
               const absl::StatusOr<size_t> received = net::Receive(socket_.get(), bytes);
               is_closed = !received.ok();
               if (received.ok()) bytes.remove_prefix(*received);
               return bytes.empty() || is_closed;
             },
             fabric) &&
         !is_closed;
}

std::optional<Frame> RawPeer::Hear(DrivenFabric& fabric) {
  Frame frame;
  if (!Receive({reinterpret_cast<std::byte*>(&frame), sizeof(frame)}, fabric)) return std::nullopt;
  if (frame.kind == FrameKind::kRefused) {
    refusal_.resize(frame.size_bytes);
    if (!Receive({reinterpret_cast<std::byte*>(refusal_.data()), refusal_.size()}, fabric)) {
      return std::nullopt;
    }
  }
  return frame;
}

bool RawPeer::IsClosed(DrivenFabric& fabric) {
  return Until([&] { return !socket_.valid() || !net::Discard(socket_.get()).ok(); }, fabric);
}

void RawPeer::FallSilent() {
  sock_filter drop_all{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &drop_all};
  setsockopt(socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

}  // namespace waybill::tcp
