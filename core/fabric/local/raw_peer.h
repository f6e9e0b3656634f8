// SPDX-License-Identifier: Apache-2.0

// For tests: a local fabric that is polled, and the other end of a lane, played by hand on a
// socket.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_RAW_PEER_H_
#define WAYBILL_CORE_FABRIC_LOCAL_RAW_PEER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/random_bits.h"
#include "core/base/steady_now.h"
#include "core/base/unique_fd.h"
#include "core/fabric/fabric.h"
#include "core/fabric/local/frames.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/local/read_permit.h"
#include "core/fabric/local/unix_socket.h"

namespace waybill::local {

// A fabric that is polled until what a test waits for has happened.
class DrivenFabric {
 public:
  explicit DrivenFabric(const LocalOptions& options = {}) : fabric_(*MakeLocalFabric(options)) {}

  Fabric* operator->() { return fabric_.get(); }

  void Poll() {
    std::vector<FabricEvent> polled;
    fabric_->Poll(polled);
    events_.insert(events_.end(), polled.begin(), polled.end());
  }
  template <typename Done>
  bool Until(const Done& done) {
    const absl::Time deadline = SteadyNow() + absl::Seconds(30);
    while (!done()) {
      if (SteadyNow() > deadline) return false;
      Poll();
    }
    return true;
  }
  bool UntilEvent(FabricEvent::Kind kind) {
    return Until([&] { return Count(kind) > 0; });
  }
  // Forgets the events so far.
  void Forget() { events_.clear(); }
  size_t Count(FabricEvent::Kind kind) const {
    return static_cast<size_t>(std::count_if(events_.begin(), events_.end(),
                                             [&](const auto& e) { return e.kind == kind; }));
  }
  uint64_t Counted(absl::string_view name) const {
    for (const FabricCount& count : fabric_->Counts()) {
      if (count.name == name) return count.value;
    }
    return ~uint64_t{0};
  }

 private:
  std::unique_ptr<Fabric> fabric_;
  std::vector<FabricEvent> events_;
};

// The other end of a lane, played by hand. Its name is the smaller one, so it is the end that
// connects.
class RawPeer {
 public:
  explicit RawPeer(const std::string& lane_address) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(lane_address, '/');
    (void)absl::SimpleHexAtoi(parts.second, &wanted_);
    socket_ = *Connect(parts.first);
    listener_ = *Listen(name_);
  }

  std::string address() const { return absl::StrCat(name_, "/", absl::Hex(kSecret)); }
  int socket() const { return socket_.get(); }

  absl::Status Say(FrameHeader header, absl::string_view body = "", int fd = -1) {
    std::string frame(reinterpret_cast<const char*>(&header), sizeof(header));
    frame.append(body.data(), body.size());
    return Send(socket_.get(), {reinterpret_cast<const std::byte*>(frame.data()), frame.size()},
                {&fd, fd < 0 ? 0u : 1u});
  }
  absl::Status SayHello() {
    const HelloBody hello{.wanted_lane = wanted_, .own_lane = kSecret};
    return Say({.kind = FrameKind::kHello}, {reinterpret_cast<const char*>(&hello), sizeof(hello)},
               permit_.fd());
  }
  // Says hello and is welcomed.
  bool Join(DrivenFabric& fabric, LaneId lane) {
    if (!fabric->ConnectLane(lane, address()).ok() || !SayHello().ok()) return false;
    std::array<std::byte, sizeof(FrameHeader) + sizeof(WelcomeBody)> frame;
    return fabric.Until([&] {
      absl::StatusOr<Received> received = Receive(socket_.get(), absl::MakeSpan(frame));
      if (received.ok()) permit_of_lane = *ReadPermit::FromPeer(std::move(received->fds[0]));
      return received.ok();
    });
  }
  bool IsClosed(DrivenFabric& fabric) {
    std::array<std::byte, kMostFrameBytes> frame;
    return fabric.Until(
        [&] { return absl::IsAborted(Receive(socket_.get(), absl::MakeSpan(frame)).status()); });
  }

  std::optional<ReadPermit> permit_of_lane;  // From its welcome.

 private:
  static constexpr uint64_t kSecret = 0x5EC8E7;

  const std::string name_ = absl::StrCat("raw-", absl::Hex(*RandomBits()));
  uint64_t wanted_ = 0;
  UniqueFd socket_;
  UniqueFd listener_;  // So that whoever looks for this peer finds it.
  ReadPermit permit_ = *ReadPermit::Create();
};

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_RAW_PEER_H_
