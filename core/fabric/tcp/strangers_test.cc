// SPDX-License-Identifier: Apache-2.0

// Tests of input from outside: strangers, liars, and a peer whose bytes make no sense.

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "core/fabric/tcp/driven_fabric.h"
#include "core/fabric/tcp/raw_peer.h"

namespace waybill::tcp {
namespace {

std::vector<std::byte> RandomBytes(std::mt19937_64& random, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

struct StrangerCase {
  std::string name;
  void (*spoil)(Hello& hello);
};

class StrangerTest : public testing::TestWithParam<StrangerCase> {};

TEST_P(StrangerTest, IsClosedAndTheLaneWaitsForItsPeer) {
  DrivenFabric fabric;
  const LaneId lane = *fabric->OpenLane("peer", "");
  RawPeer peer(*fabric->LaneAddress(lane));
  RawPeer stranger(*fabric->LaneAddress(lane));
  ASSERT_TRUE(fabric->ConnectLane(lane, peer.address()).ok());
  Hello hello = peer.GoodHello();
  GetParam().spoil(hello);
  ASSERT_TRUE(stranger.Say(hello, fabric));
  EXPECT_TRUE(stranger.IsClosed(fabric));
  EXPECT_EQ(fabric.Counted("refused_strangers"), 1u);
  EXPECT_FALSE(fabric.HasFailed(lane));
  ASSERT_TRUE(peer.Say(peer.GoodHello(), fabric));
  EXPECT_TRUE(Until([&] { return fabric.IsConnected(lane); }, fabric));
}

const StrangerCase kStrangerCases[] = {
    {"of_another_protocol", [](Hello& hello) { hello.magic = {'G', 'E', 'T', ' ', '/'}; }},
    {"of_another_version", [](Hello& hello) { ++hello.magic.back(); }},
    {"with_a_wrong_secret", [](Hello& hello) { hello.wanted_lane.back() ^= 1; }},
    {"with_no_secret", [](Hello& hello) { hello.wanted_lane = {}; }},
    {"who_is_not_the_peer_that_was_told", [](Hello& hello) { hello.own_lane.front() ^= 1; }},
};

INSTANTIATE_TEST_SUITE_P(All, StrangerTest, testing::ValuesIn(kStrangerCases),
                         [](const auto& info) { return info.param.name; });

TEST(Strangers, WhoComesToALaneThatHasAPeerIsClosed) {
  DrivenFabric fabric;
  const LaneId lane = *fabric->OpenLane("peer", "");
  RawPeer peer(*fabric->LaneAddress(lane));
  RawPeer second(*fabric->LaneAddress(lane));
  ASSERT_TRUE(peer.Join(fabric, lane));
  ASSERT_TRUE(second.Say(peer.GoodHello(), fabric));
  EXPECT_TRUE(second.IsClosed(fabric));
  ASSERT_TRUE(peer.Say(Frame{.kind = FrameKind::kImmediate, .immediate = 7}, fabric));
  EXPECT_TRUE(
      Until([&] { return fabric.Count(FabricEvent::Kind::kImmediate, lane) == 1; }, fabric));
}

TEST(Strangers, AnotherPeerThanIsToldLaterIsDropped) {
  DrivenFabric fabric;
  const LaneId lane = *fabric->OpenLane("peer", "");
  RawPeer early(*fabric->LaneAddress(lane));
  RawPeer peer(*fabric->LaneAddress(lane));
  ASSERT_TRUE(early.Say(early.GoodHello(), fabric));
  ASSERT_TRUE(Until([&] { return fabric.Counted("accepted_sockets") == 2; }, fabric));
  for (int i = 0; i < 10; ++i) fabric.Poll();
  ASSERT_TRUE(fabric->ConnectLane(lane, peer.address()).ok());
  EXPECT_TRUE(early.IsClosed(fabric));
  ASSERT_TRUE(peer.Say(peer.GoodHello(), fabric));
  EXPECT_TRUE(Until([&] { return fabric.IsConnected(lane); }, fabric));
}

TEST(Strangers, WhoSaysNothingIsClosedAfterAWhile) {
  DrivenFabric fabric({.stranger_timeout = absl::Milliseconds(30)});
  const std::string address = *fabric->LaneAddress(*fabric->OpenLane("peer", ""));
  RawPeer silent(address);
  RawPeer slow(address);
  ASSERT_TRUE(slow.Send({reinterpret_cast<const std::byte*>("waybil"), 6}, fabric));
  EXPECT_TRUE(silent.IsClosed(fabric));
  EXPECT_TRUE(slow.IsClosed(fabric));
  EXPECT_EQ(fabric.Counted("silent_strangers"), 2u);
}

TEST(Strangers, OfTooManyTheOldestIsClosed) {
  DrivenFabric fabric({.stranger_timeout = absl::Hours(1), .most_strangers = 3});
  const LaneId lane = *fabric->OpenLane("peer", "");
  std::vector<RawPeer> crowd;
  for (int i = 0; i < 10; ++i) crowd.emplace_back(*fabric->LaneAddress(lane));
  ASSERT_TRUE(Until([&] { return fabric.Counted("accepted_sockets") == 10; }, fabric));
  EXPECT_EQ(fabric.Counted("silent_strangers"), 7u);
  EXPECT_TRUE(crowd.front().IsClosed(fabric));
  RawPeer peer(*fabric->LaneAddress(lane));
  EXPECT_TRUE(peer.Join(fabric, lane));
}

TEST(Strangers, GarbageIsClosed) {
  DrivenFabric a;
  DrivenFabric b;
  const std::string address = *a->LaneAddress(*a->OpenLane("b", ""));
  std::mt19937_64 random(20);
  for (int i = 0; i < 200; ++i) {
    RawPeer stranger(address);
    (void)stranger.Send(RandomBytes(random, 1 + random() % 5000), a);
    EXPECT_TRUE(stranger.IsClosed(a));
  }
  EXPECT_EQ(a.Counted("refused_strangers"), 200u);
  EXPECT_TRUE(DrivenLane(a, b).Carries());
}

// A peer that is allowed in, and says whatever comes to its mind: some of it nearly right.
TEST(Strangers, GarbageOnALaneHarmsNothingButTheLane) {
  constexpr uint64_t kSize = 5000;
  constexpr uint64_t kGuard = 4096;
  std::vector<std::byte> memory(kGuard + kSize + kGuard, std::byte{0x5A});
  std::vector<std::byte> secret(5000, std::byte{0x5A});
  DrivenFabric fabric;
  DrivenFabric other;
  DrivenLane good(fabric, other);
  const Region region =
      *fabric->Register({MemoryKind::kHost, memory.data() + kGuard, kSize}, "granted");
  const Region hidden =
      *fabric->Register({MemoryKind::kHost, secret.data(), secret.size()}, "not granted");
  uint64_t failed = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937_64 random(seed);
    const LaneId lane = *fabric->OpenLane("peer", "");
    RawPeer peer(*fabric->LaneAddress(lane));
    ASSERT_TRUE(peer.Join(fabric, lane));
    ASSERT_TRUE(fabric->Grant(lane, region.id).ok());
    const uint64_t keys[] = {std::stoull(*fabric->Describe(region.id), nullptr, 16),
                             std::stoull(*fabric->Describe(hidden.id), nullptr, 16), random(), 0};
    for (int i = 0; i < 30; ++i) {
      const auto any = [&](std::initializer_list<uint64_t> values) {
        return *(values.begin() + random() % values.size());
      };
      Frame frame{.kind = static_cast<FrameKind>(random() % 12 == 0 ? random() : 1 + random() % 8),
                  .flags = static_cast<uint16_t>(random() % 8),
                  .immediate = static_cast<uint32_t>(random() % 20),
                  .key = keys[random() % 8 == 0 ? random() % 4 : 0],
                  .offset_bytes = any({0, random() % kSize, kSize, kSize + 1, ~uint64_t{0}}),
                  .size_bytes = any({0, 1, random() % kSize, kSize, random(), ~uint64_t{0}})};
      if (random() % 3 != 0) frame.kind = FrameKind::kWrite;
      if (random() % 3 != 0) {
        frame.offset_bytes = random() % kSize;
        frame.size_bytes = random() % (kSize - frame.offset_bytes);
      }
      if (!peer.Say(frame, fabric)) break;
      if (frame.kind != FrameKind::kWrite) continue;
      const uint64_t size = std::min<uint64_t>(frame.size_bytes, 2 * kSize);
      if (!peer.Send(std::vector<std::byte>(size, std::byte{0xEE}), fabric)) break;
    }
    for (int i = 0; i < 20; ++i) fabric.Poll();
    failed += fabric.HasFailed(lane) ? 1 : 0;
    ASSERT_TRUE(fabric->CloseLane(lane).ok());
    for (uint64_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(memory[i], std::byte{0x5A}) << "seed " << seed;
      ASSERT_EQ(memory[kGuard + kSize + i], std::byte{0x5A}) << "seed " << seed;
    }
    for (const std::byte b : secret) ASSERT_EQ(b, std::byte{0x5A}) << "seed " << seed;
  }
  EXPECT_GT(failed, 300u);
  EXPECT_EQ(memory[kGuard + kSize / 2], std::byte{0xEE}) << "the garbage is not near enough";
  EXPECT_TRUE(good.Carries());
}

}  // namespace
}  // namespace waybill::tcp
