// SPDX-License-Identifier: Apache-2.0

// What arrives at a tcp fabric's port. The first byte says from whom: a stranger, or the peer of a
// lane that has been granted a region.
#include <algorithm>

#include "core/fabric/tcp/driven_fabric.h"
#include "core/fabric/tcp/raw_peer.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

using tcp::Frame;
using tcp::FrameKind;

constexpr uint64_t kGuard = 64, kRegion = 256;

template <typename T>
std::string BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The fabric, and memory around the region that nobody may touch.
struct Victim {
  tcp::DrivenFabric fabric;
  std::vector<std::byte> memory = std::vector<std::byte>(kGuard + kRegion + kGuard);
  Region region = *fabric->Register({MemoryKind::kHost, memory.data() + kGuard, kRegion}, "region");

  bool GuardsHold() const {
    const auto untouched = [](std::byte b) { return b == std::byte{0}; };
    return std::all_of(memory.begin(), memory.begin() + kGuard, untouched) &&
           std::all_of(memory.end() - kGuard, memory.end(), untouched);
  }
};

}  // namespace

// A key of 0 stands for the region's own.
std::vector<std::string> Seeds() {
  const std::string peer(1, 1), stranger(1, 0);
  const Frame write{.kind = FrameKind::kWrite,
                    .flags = tcp::kEndsPost | tcp::kHasImmediate,
                    .immediate = 7,
                    .size_bytes = 16};
  return {
      peer + BytesOf(write) + std::string(16, 'x'),
      peer + BytesOf(Frame{.kind = FrameKind::kGrant, .key = 5, .size_bytes = 100}) +
          BytesOf(Frame{.kind = FrameKind::kRevoke, .key = 5}),
      peer + BytesOf(Frame{.kind = FrameKind::kEmptyPost, .flags = tcp::kEndsPost}) +
          BytesOf(Frame{.kind = FrameKind::kImmediate, .immediate = 1}),
      peer + BytesOf(Frame{.kind = FrameKind::kDone, .size_bytes = 1}),
      peer + BytesOf(Frame{.kind = FrameKind::kRefused, .immediate = 7, .size_bytes = 4}) + "text",
      stranger + BytesOf(tcp::Hello{})};
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace waybill;
  if (size == 0) return 0;
  static auto* const victim = new fuzz::Victim;
  tcp::DrivenFabric& fabric = victim->fabric;
  fabric.events.clear();
  const LaneId lane = *fabric->OpenLane("peer", "");
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  {
    tcp::RawPeer peer(*fabric->LaneAddress(lane));
    const bool joins = data[0] % 2 == 1;
    if (joins) {
      fuzz::Require(peer.Join(fabric, lane), "a lane is made whatever came before");
      (void)fabric->Grant(lane, victim->region.id);
      (void)fabric->Post(lane, {}, std::nullopt, 77);
      const uint64_t key = std::stoull(*fabric->Describe(victim->region.id), nullptr, 16);
      tcp::Frame first;
      if (bytes.size() >= sizeof(first)) {
        std::memcpy(&first, bytes.data(), sizeof(first));
        if (first.key == 0) first.key = key;
        std::memcpy(bytes.data(), &first, sizeof(first));
      }
    }
    (void)peer.Send({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, fabric);
  }
  // The peer is gone, so the lane of one that joined fails when all it said was taken.
  if (data[0] % 2 == 1) {
    fuzz::Require(tcp::Until([&] { return fabric.HasFailed(lane); }, fabric),
                  "a lane whose peer is gone fails");
  } else {
    for (int i = 0; i < 3; ++i) fabric.Poll();
    fuzz::Require(!fabric.HasFailed(lane), "a stranger does not end a lane");
  }
  for (const FabricEvent& event : fabric.events) {
    fuzz::Require(event.kind != FabricEvent::Kind::kComplete || event.token == 77,
                  "only what was posted completes");
  }
  fuzz::Require(victim->GuardsHold(), "nothing is written outside of a region");
  (void)fabric->CloseLane(lane);
  return 0;
}
