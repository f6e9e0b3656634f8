// SPDX-License-Identifier: Apache-2.0

// What arrives at a local fabric's socket, as frames with descriptors. The first byte says from
// whom: a stranger, or the peer of a lane that has been granted a region.
#include <algorithm>
#include <cstring>

#include "core/fabric/local/raw_peer.h"
#include "core/fabric/shared_pages.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

using local::FrameHeader;
using local::FrameKind;

constexpr uint64_t kGuard = 64, kRegion = 256;

struct Victim {
  local::DrivenFabric fabric;
  std::vector<std::byte> memory = std::vector<std::byte>(kGuard + kRegion + kGuard);
  Region region = *fabric->Register({MemoryKind::kHost, memory.data() + kGuard, kRegion}, "region");
  SharedPages pages = *SharedPages::Create(4096, "the peer's");

  bool GuardsHold() const {
    const auto untouched = [](std::byte b) { return b == std::byte{0}; };
    return std::all_of(memory.begin(), memory.begin() + kGuard, untouched) &&
           std::all_of(memory.end() - kGuard, memory.end(), untouched);
  }
};

// A frame in an input: its length, whether the peer's pages come along, its bytes.
template <typename Body>
std::string FrameOf(FrameHeader header, const Body& body, bool with_pages = false) {
  const uint16_t length = sizeof(header) + sizeof(body);
  std::string frame(reinterpret_cast<const char*>(&length), sizeof(length));
  frame.push_back(with_pages ? 1 : 0);
  frame.append(reinterpret_cast<const char*>(&header), sizeof(header));
  frame.append(reinterpret_cast<const char*>(&body), sizeof(body));
  return frame;
}

// In a write a destination key of 0 stands for the region's own.
void PutKey(std::string& frame, uint64_t key) {
  constexpr size_t kAt = sizeof(FrameHeader) + offsetof(local::WriteRecord, destination_key);
  uint64_t there = 1;
  if (frame.size() < kAt + sizeof(there)) return;
  std::memcpy(&there, frame.data() + kAt, sizeof(there));
  if (there == 0) std::memcpy(frame.data() + kAt, &key, sizeof(key));
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string peer(1, 1), stranger(1, 0);
  const std::string grant =
      FrameOf({.kind = FrameKind::kGrant},
              local::GrantBody{.key = 5, .size_bytes = 4096, .has_pages = 1}, true);
  const FrameHeader writes{.kind = FrameKind::kWrites,
                           .immediate = 3,
                           .has_immediate = 1,
                           .count = 1,
                           .wants_done = 1,
                           .token = 9};
  const local::WriteRecord record{.source_key = 5, .size_bytes = 16};
  return {peer + grant + FrameOf(writes, record),
          peer + grant + FrameOf({.kind = FrameKind::kRevoke}, local::GrantBody{.key = 5}) +
              FrameOf(writes, record),
          peer + FrameOf({.kind = FrameKind::kDone, .token = 77}, local::RefusalBody{.code = 7}),
          peer + FrameOf({.kind = FrameKind::kRefused}, local::RefusalBody{.code = 7}),
          stranger + FrameOf({.kind = FrameKind::kHello}, local::HelloBody{1, 2}, true)};
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace waybill;
  if (size == 0) return 0;
  static auto* const victim = new fuzz::Victim;
  local::DrivenFabric& fabric = victim->fabric;
  fabric.Forget();
  const LaneId lane = *fabric->OpenLane("peer", "");
  const bool joins = data[0] % 2 == 1;
  {
    local::RawPeer peer(*fabric->LaneAddress(lane));
    uint64_t key = 0;
    if (joins) {
      fuzz::Require(peer.Join(fabric, lane), "a lane is made whatever came before");
      (void)fabric->Grant(lane, victim->region.id);
      (void)fabric->Post(lane, {}, std::nullopt, 77);
      key = std::stoull(*fabric->Describe(victim->region.id), nullptr, 16);
    }
    for (size_t at = 1; at + 3 <= size;) {
      uint16_t length = 0;
      std::memcpy(&length, data + at, sizeof(length));
      const bool with_pages = data[at + 2] == 1;
      at += 3;
      std::string frame(reinterpret_cast<const char*>(data) + at,
                        std::min<size_t>(length, size - at));
      at += frame.size();
      fuzz::PutKey(frame, key);
      const int fd = victim->pages.fd();
      (void)local::Send(peer.socket(),
                        {reinterpret_cast<const std::byte*>(frame.data()), frame.size()},
                        {&fd, with_pages ? 1u : 0u});
      fabric.Poll();
    }
  }
  if (joins) {
    fuzz::Require(fabric.UntilEvent(FabricEvent::Kind::kFailed), "a lane whose peer is gone fails");
  } else {
    for (int i = 0; i < 3; ++i) fabric.Poll();
    fuzz::Require(fabric.Count(FabricEvent::Kind::kFailed) == 0, "a stranger does not end a lane");
  }
  fuzz::Require(fabric.Count(FabricEvent::Kind::kComplete) <= 1, "only what was posted completes");
  fuzz::Require(victim->GuardsHold(), "nothing is written outside of a region");
  (void)fabric->CloseLane(lane);
  return 0;
}
