// SPDX-License-Identifier: Apache-2.0

// For tests: the other end of a lane, played by hand on a socket.
#ifndef WAYBILL_CORE_FABRIC_TCP_RAW_PEER_H_
#define WAYBILL_CORE_FABRIC_TCP_RAW_PEER_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/fabric/fabric.h"
#include "core/fabric/tcp/driven_fabric.h"
#include "core/fabric/tcp/frames.h"
#include "core/fabric/tcp/lane_address.h"
#include "core/net/tcp_socket.h"

namespace waybill::tcp {

class RawPeer {
 public:
  // Somebody who knows where a lane's end listens, and says nothing yet.
  explicit RawPeer(absl::string_view lane_address);

  // The address to give to the lane. It is the smaller one, so this end connects.
  std::string address() const;

  Hello GoodHello() const;
  // Says hello and is welcomed.
  bool Join(DrivenFabric& fabric, LaneId lane);

  // Returns false if the connection is closed. Polls the fabric while the socket is full.
  bool Send(absl::Span<const std::byte> bytes, DrivenFabric& fabric);
  template <typename T>
  bool Say(const T& value, DrivenFabric& fabric) {
    return Send({reinterpret_cast<const std::byte*>(&value), sizeof(value)}, fabric);
  }

  // The next frame, and the text of a refusal; nothing where the connection is closed before.
  std::optional<Frame> Hear(DrivenFabric& fabric);
  const std::string& refusal() const { return refusal_; }
  // Whether the fabric closes the connection.
  bool IsClosed(DrivenFabric& fabric);

  // From now on this host answers nothing on the connection.
  void FallSilent();

 private:
  bool Receive(absl::Span<std::byte> bytes, DrivenFabric& fabric);

  LaneAddress peer_;
  net::Listener listener_;  // So that whoever looks for this peer finds it.
  LaneAddress own_;
  UniqueFd socket_;
  std::string refusal_;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_RAW_PEER_H_
