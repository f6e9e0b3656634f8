// SPDX-License-Identifier: Apache-2.0

// Posts: what they move, in which order, and how many there may be.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "core/base/steady_now.h"
#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

using Kind = FabricEvent::Kind;

struct Placed {
  uint64_t from;
  uint64_t to;
  uint64_t size;
};

TEST_P(FabricConformance, AWriteMovesItsBytesAndNoOther) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  constexpr uint64_t kSize = 300'000;
  const Region from = endpoints_.SourceAtA(lane, kSize, 3);
  const Reached to = endpoints_.AllocateAtB(lane, kSize);
  const Placed kPlaced[] = {
      {0, 0, 1},           {1, 0, 1},           {0, 1, 3},        {5, 9, 7},
      {63, 1, 64},         {1, 63, 65},         {13, 4095, 4096}, {4095, 13, 4097},
      {7, 65535, 65537},   {1, 3, 262'143},     {0, 0, kSize},    {kSize - 1, kSize - 1, 1},
      {0, kSize - 33, 33}, {kSize - 33, 0, 33},
  };
  for (const Placed& p : kPlaced) {
    std::memset(to.region.memory.data, 0xA5, kSize);
    ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, p.from, to.remote, p.to, p.size}}));
    for (uint64_t i = 0; i < kSize; ++i) {
      const bool within = i >= p.to && i < p.to + p.size;
      ASSERT_EQ(to.region.memory.data[i], within ? ByteAt(i - p.to + p.from, 3) : std::byte{0xA5})
          << p.size << " bytes from " << p.from << " to " << p.to << ", at " << i;
    }
  }
}

TEST_P(FabricConformance, RegisteredMemoryIsWrittenTo) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  std::vector<std::byte> memory(5000, std::byte{0xEE});
  const auto region =
      lane.b->fabric().Register({MemoryKind::kHost, memory.data() + 3, 4990}, "of the user's");
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->memory.data, memory.data() + 3);
  const Reached to = endpoints_.GrantToA(lane, *region);
  const Region from = endpoints_.SourceAtA(lane, 4990);
  ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 1, 4989}}));
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool within = i >= 4 && i < 4993;
    ASSERT_EQ(memory[i], within ? ByteAt(i - 4, 1) : std::byte{0xEE}) << i;
  }
}

TEST_P(FabricConformance, RegisteredMemoryIsASourceUnlessTheFabricSaysOtherwise) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  std::vector<std::byte> memory(100, std::byte{0x11});
  const Region from =
      *lane.a->fabric().Register({MemoryKind::kHost, memory.data(), memory.size()}, "source");
  const Reached to = endpoints_.AllocateAtB(lane, 100);
  const std::vector<Write> write = {{from.id, 0, to.remote, 0, 100}};
  if (lane.a->fabric().capabilities().source_must_be_granted) {
    EXPECT_EQ(lane.a->fabric().Post(lane.at_a, write, std::nullopt, 1).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
    EXPECT_TRUE(Carries(lane));
  } else {
    EXPECT_TRUE(endpoints_.PostAndComplete(lane, write));
    EXPECT_TRUE(AllAre(to.region.memory, std::byte{0x11}));
  }
}

TEST_P(FabricConformance, ASourceThatTheFabricTakesIsReadWhereItLies) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  std::vector<std::byte> memory(5000);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = ByteAt(i, 9);
  const auto source =
      lane.a->fabric().RegisterSource({MemoryKind::kHost, memory.data() + 3, 4990}, "tensors");
  if (!source.ok()) {
    EXPECT_TRUE(absl::IsUnimplemented(source.status()) ||
                absl::IsResourceExhausted(source.status()))
        << source.status();
    return;
  }
  EXPECT_EQ(source->memory.data, memory.data() + 3);
  const Reached to = endpoints_.AllocateAtB(lane, 4990);
  if (lane.a->fabric().CheckRead(lane.at_a, source->id).ok()) {
    ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{source->id, 5, to.remote, 0, 4985}}));
    for (size_t i = 0; i < 4985; ++i) ASSERT_EQ(to.region.memory.data[i], ByteAt(i + 8, 9)) << i;
  }
  EXPECT_TRUE(lane.a->fabric().Release(source->id).ok());
}

TEST_P(FabricConformance, AWriteOfNothingIsAPost) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 64);
  const Reached to = endpoints_.AllocateAtB(lane, 64);
  EXPECT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 0}}));
  EXPECT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 64, to.remote, 64, 0}}, 9));
  EXPECT_TRUE(endpoints_.PostAndComplete(lane, {}));
  EXPECT_TRUE(endpoints_.PostAndComplete(lane, {}, 10));
  EXPECT_TRUE(endpoints_.Until([&] { return lane.b->Immediates(lane.at_b).size() >= 2; }));
  endpoints_.UntilQuiet();
  EXPECT_EQ(lane.b->Immediates(lane.at_b), (std::vector<uint32_t>{9, 10}));
  EXPECT_EQ(lane.a->Count(Kind::kComplete, lane.at_a), 4u);
  EXPECT_EQ(lane.b->Count(Kind::kComplete, lane.at_b), 0u);
  EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
}

TEST_P(FabricConformance, TheLongestWriteIsDoneAndALongerOneRefused) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const uint64_t longest = lane.a->fabric().capabilities().max_write_bytes;
  if (longest > uint64_t{64} << 20) GTEST_SKIP() << "it takes any that there is memory for";
  const Region from = endpoints_.SourceAtA(lane, longest + 1);
  const Reached to = endpoints_.AllocateAtB(lane, longest + 1);
  EXPECT_EQ(lane.a->fabric()
                .Post(lane.at_a, {{from.id, 0, to.remote, 0, longest + 1}}, std::nullopt, 1)
                .code(),
            absl::StatusCode::kInvalidArgument);
  endpoints_.UntilQuiet();
  EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
  ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 1, to.remote, 0, longest}}));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data + 1, longest), 0);
  EXPECT_EQ(to.region.memory.data[longest], std::byte{0});
}

TEST_P(FabricConformance, AWriteLongerThanAnyMessageIsOneWrite) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  constexpr uint64_t kSize = (uint64_t{20} << 20) + 13;
  if (lane.a->fabric().capabilities().max_write_bytes < kSize) GTEST_SKIP() << "none is that long";
  const Region from = endpoints_.SourceAtA(lane, kSize);
  const Reached to = endpoints_.AllocateAtB(lane, kSize);
  ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 0, kSize}}, 8));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, kSize), 0);
  EXPECT_TRUE(endpoints_.Until([&] { return lane.b->Immediates(lane.at_b).size() == 1; }));
}

TEST_P(FabricConformance, WritesOfAPostAndPostsOfALaneLandInOrder) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 256);
  for (uint32_t i = 0; i < 256; ++i) from.memory.data[i] = static_cast<std::byte>(i);
  const Reached to = endpoints_.AllocateAtB(lane, 8);
  for (uint32_t post = 0; post < 32; ++post) {  // All to the same byte: the last one stays.
    std::vector<Write> writes;
    for (uint32_t i = 0; i < 8; ++i) {
      writes.push_back({from.id, post * 8 + i, to.remote, 3, 1});
    }
    ASSERT_TRUE(lane.a->fabric().Post(lane.at_a, writes, std::nullopt, post).ok());
  }
  ASSERT_TRUE(endpoints_.Until([&] { return lane.a->IsComplete(lane.at_a, 31); }));
  EXPECT_EQ(to.region.memory.data[3], std::byte{255});
  std::vector<uint64_t> tokens;
  for (const FabricEvent& e : lane.a->events()) {
    if (e.kind == Kind::kComplete) tokens.push_back(e.token);
  }
  ASSERT_EQ(tokens.size(), 32u);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(tokens[i], i);
}

TEST_P(FabricConformance, BehindAnImmediateLiesAllThatWasPostedBeforeIt) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  constexpr uint32_t kPosts = 64;
  constexpr uint64_t kEach = 5000;
  const Region from = endpoints_.SourceAtA(lane, kEach);
  std::memset(from.memory.data, 0x77, kEach);
  const Reached to = endpoints_.AllocateAtB(lane, kPosts * kEach);
  for (uint32_t i = 0; i < kPosts; ++i) {  // Every second one has no immediate.
    ASSERT_TRUE(lane.a->fabric()
                    .Post(lane.at_a, {{from.id, 0, to.remote, i * kEach, kEach}},
                          i % 2 == 1 ? std::optional(i) : std::nullopt, i)
                    .ok());
  }
  std::vector<uint32_t> expected;
  for (uint32_t i = 1; i < kPosts; i += 2) expected.push_back(i);
  size_t checked = 0;
  ASSERT_TRUE(endpoints_.Until([&] {
    const std::vector<uint32_t> immediates = lane.b->Immediates(lane.at_b);
    for (; checked < immediates.size(); ++checked) {
      EXPECT_TRUE(
          AllAre({MemoryKind::kHost, to.region.memory.data, (immediates[checked] + 1) * kEach},
                 std::byte{0x77}));
    }
    return checked == kPosts / 2;
  }));
  EXPECT_EQ(lane.b->Immediates(lane.at_b), expected);
}

TEST_P(FabricConformance, APostOfManyWritesIsOnePost) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  constexpr uint32_t kWrites = 2500;
  const Region from = endpoints_.SourceAtA(lane, kWrites);
  const Reached to = endpoints_.AllocateAtB(lane, kWrites);
  std::vector<Write> writes;
  for (uint32_t i = 0; i < kWrites; ++i) writes.push_back({from.id, i, to.remote, i, 1});
  ASSERT_TRUE(endpoints_.PostAndComplete(lane, writes, 5));
  EXPECT_TRUE(endpoints_.Until([&] { return !lane.b->Immediates(lane.at_b).empty(); }));
  endpoints_.UntilQuiet();
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, kWrites), 0);
  EXPECT_EQ(lane.a->Count(Kind::kComplete, lane.at_a), 1u);
  EXPECT_EQ(lane.b->Immediates(lane.at_b), std::vector<uint32_t>{5});
}

TEST_P(FabricConformance, ARefusedPostPostsNothing) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  constexpr uint32_t kWrites = 2500;
  const Region from = endpoints_.SourceAtA(lane, kWrites);
  const Reached to = endpoints_.AllocateAtB(lane, kWrites);
  std::vector<Write> writes;
  for (uint32_t i = 0; i < kWrites; ++i) writes.push_back({from.id, i, to.remote, i, 1});
  const Write bad[] = {
      {RegionId::kNone, 0, to.remote, 0, 1},
      {RegionId{12345}, 0, to.remote, 0, 1},
      {from.id, 0, RemoteRegionId::kNone, 0, 1},
      {from.id, 0, RemoteRegionId{12345}, 0, 1},
      {from.id, kWrites, to.remote, 0, 1},
      {from.id, 1, to.remote, 0, kWrites},
      {from.id, std::numeric_limits<uint64_t>::max(), to.remote, 0, 2},
  };
  for (const Write& last : bad) {
    writes.push_back(last);
    EXPECT_FALSE(lane.a->fabric().Post(lane.at_a, writes, 5, 5).ok());
    writes.pop_back();
  }
  endpoints_.UntilQuiet();
  EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
  EXPECT_TRUE(lane.b->Immediates(lane.at_b).empty());
  EXPECT_EQ(lane.a->Count(Kind::kComplete, lane.at_a), 0u);
  EXPECT_TRUE(Carries(lane));
}

TEST_P(FabricConformance, EqualImmediatesAllCome) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  for (const uint32_t immediate : {7u, 7u, 0u, 7u, 0u, ~0u, ~0u}) {
    ASSERT_TRUE(lane.a->fabric().Post(lane.at_a, {}, immediate, 1).ok());
  }
  EXPECT_TRUE(endpoints_.Until([&] { return lane.b->Immediates(lane.at_b).size() >= 7; }));
  EXPECT_EQ(lane.b->Immediates(lane.at_b), (std::vector<uint32_t>{7, 7, 0, 7, 0, ~0u, ~0u}));
}

TEST_P(FabricConformance, BeyondTheMostOutstandingPostsNothingIsLost) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  Fabric& fabric = lane.a->fabric();
  const uint32_t most = fabric.capabilities().max_outstanding_posts;
  const Region from = endpoints_.SourceAtA(lane, most * 4);
  const Reached to = endpoints_.AllocateAtB(lane, most * 4);
  for (uint32_t i = 0; i < most; ++i) {
    ASSERT_EQ(fabric.Post(lane.at_a, {{from.id, i * 4, to.remote, i * 4, 4}}, i, i).message(), "");
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(fabric.Post(lane.at_a, {}, 0, 0).code(), absl::StatusCode::kResourceExhausted);
  }
  ASSERT_TRUE(endpoints_.Until([&] { return lane.a->Count(Kind::kComplete, lane.at_a) == most; }));
  ASSERT_TRUE(endpoints_.Until([&] { return lane.b->Immediates(lane.at_b).size() >= most; }));
  const std::vector<uint32_t> immediates = lane.b->Immediates(lane.at_b);
  ASSERT_EQ(immediates.size(), most);
  for (uint32_t i = 0; i < most; ++i) ASSERT_EQ(immediates[i], i);
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, most * 4), 0);
  EXPECT_TRUE(Carries(lane));
}

TEST_P(FabricConformance, AReceiverThatDoesNotPollHoldsUpNobodyElse) {
  Endpoint& a = Join("a");
  Endpoint& slow = Join("slow");
  const Lane full = endpoints_.Connect(a, slow);
  const Lane other = endpoints_.Connect(a, Join("c"));
  const uint32_t posts = a.fabric().capabilities().max_outstanding_posts;
  constexpr uint32_t kWrites = 300;  // More than any socket keeps.
  const Region from = endpoints_.SourceAtA(full, kWrites);
  const Reached to = endpoints_.AllocateAtB(full, kWrites);
  std::vector<Write> writes;
  for (uint32_t i = 0; i < kWrites; ++i) writes.push_back({from.id, i, to.remote, i, 1});
  for (uint32_t i = 0; i < posts; ++i) {
    ASSERT_EQ(a.fabric().Post(full.at_a, writes, i, i).message(), "") << i;
  }
  const uint64_t token = endpoints_.NextToken();
  ASSERT_TRUE(a.fabric().Post(other.at_a, {}, 99, token).ok());
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  while (!a.IsComplete(other.at_a, token) && SteadyNow() < deadline) {
    a.Poll();
    other.b->Poll();
  }
  EXPECT_TRUE(a.IsComplete(other.at_a, token));
  EXPECT_FALSE(a.HasFailed(full.at_a));
  ASSERT_TRUE(endpoints_.Until([&] { return a.Count(Kind::kComplete, full.at_a) == posts; }));
  EXPECT_TRUE(endpoints_.Until([&] { return slow.Immediates(full.at_b).size() == posts; }));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, kWrites), 0);
}

TEST_P(FabricConformance, ManySendersReachOneReceiver) {
  Endpoint& receiver = Join("receiver");
  std::vector<Lane> lanes;
  std::vector<Reached> to;
  constexpr uint32_t kPosts = 50;
  for (uint32_t s = 0; s < 5; ++s) {
    lanes.push_back(endpoints_.Connect(Join(std::string(1, static_cast<char>('a' + s))), receiver));
    const Region from = endpoints_.SourceAtA(lanes[s], kPosts * 100, s);
    to.push_back(endpoints_.AllocateAtB(lanes[s], kPosts * 100));
    for (uint32_t i = 0; i < kPosts; ++i) {
      ASSERT_TRUE(lanes[s]
                      .a->fabric()
                      .Post(lanes[s].at_a, {{from.id, i * 100, to[s].remote, i * 100, 100}}, i, i)
                      .ok());
    }
  }
  for (uint32_t s = 0; s < 5; ++s) {
    ASSERT_TRUE(
        endpoints_.Until([&] { return receiver.Immediates(lanes[s].at_b).size() == kPosts; }));
    for (uint64_t i = 0; i < kPosts * 100; ++i) {
      ASSERT_EQ(to[s].region.memory.data[i], ByteAt(i, s)) << "sender " << s << " at " << i;
    }
  }
}

TEST_P(FabricConformance, WhenAPostIsCompleteItsSourceMayBeUsedAgain) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 1000);
  const Reached to = endpoints_.AllocateAtB(lane, 1000);
  for (uint32_t round = 0; round < 20; ++round) {
    Fill(from.memory, round);
    ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 1000}}));
    Fill(from.memory, 200);
    for (uint64_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(to.region.memory.data[i], ByteAt(i, round));
    }
  }
}

// The status is what is tested: memory of the host, which stands for a device's here, has the bytes
// anyway.
TEST_P(FabricConformance, WhatHasArrivedInADevicesMemoryIsReadBack) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  std::vector<std::byte> memory(10'000);
  Fabric& fabric = lane.b->fabric();
  const auto region = fabric.Register({.kind = MemoryKind::kDevice,
                                       .data = memory.data(),
                                       .size_bytes = memory.size(),
                                       .needs_read_back = true},
                                      "memory");
  if (!region.ok()) GTEST_SKIP() << "not in this network: " << region.status();
  const Reached to = endpoints_.GrantToA(lane, *region);
  const Region from = endpoints_.SourceAtA(lane, memory.size(), 3);
  for (size_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 0, memory.size()}}, 1));
    ASSERT_TRUE(endpoints_.Until([&] { return lane.b->Immediates(lane.at_b).size() == round; }));
    EXPECT_EQ(fabric.ReadBack(lane.at_b).message(), "");
    EXPECT_EQ(memory[9999], ByteAt(9999, 3));
    memory.assign(memory.size(), std::byte{0});
  }
  EXPECT_TRUE(fabric.Release(region->id).ok());
}

}  // namespace
}  // namespace waybill::testing_fabric
