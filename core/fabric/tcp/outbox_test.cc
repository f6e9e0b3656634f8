// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

namespace waybill::tcp {
namespace {

// Parses a stream as a receiver does.
struct Parsed {
  std::vector<uint32_t> immediates;
  std::vector<uint64_t> done;
};

Parsed Parse(const std::vector<std::byte>& stream, const std::vector<std::byte>& payload) {
  Parsed parsed;
  std::vector<Frame> writes;  // The writes without their bytes yet.
  for (size_t at = 0; at < stream.size();) {
    Frame frame;
    EXPECT_LE(at + sizeof(frame), stream.size());
    std::memcpy(&frame, stream.data() + at, sizeof(frame));
    at += sizeof(frame);
    if (frame.kind == FrameKind::kDone) {
      parsed.done.push_back(frame.size_bytes);
      continue;
    }
    parsed.immediates.push_back(frame.immediate);
    if (frame.kind != FrameKind::kWrite) continue;
    writes.push_back(frame);
    if (!AreBytesBehind(frame, writes.size())) continue;
    for (const Frame& write : writes) {
      EXPECT_LE(at + write.size_bytes, stream.size());
      EXPECT_EQ(
          std::memcmp(stream.data() + at, payload.data() + write.offset_bytes, write.size_bytes),
          0);
      at += write.size_bytes;
    }
    writes.clear();
  }
  EXPECT_TRUE(writes.empty());
  return parsed;
}

// Whatever a socket takes at a time, frames come whole and in order, and the tally of what is done
// comes between them.
TEST(Outbox, ComesOutInOrderHoweverItIsCut) {
  std::vector<std::byte> payload(1000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7 + (i >> 8));
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Outbox outbox;
    std::vector<std::byte> stream;
    uint32_t pushed = 0;
    uint64_t pushed_bytes = 0;
    uint64_t done = 0;
    const auto push_post = [&](uint32_t writes) {
      for (uint32_t i = 0; i < writes; ++i) {
        const uint64_t offset = random() % 1000;
        const uint64_t size = random() % (1000 - offset) / (writes > 10 ? 100 : 1);
        const uint16_t flags = i + 1 == writes ? kEndsPost : 0;
        outbox.Push({FrameKind::kWrite, flags, pushed++, 0, offset, size}, payload.data() + offset);
        pushed_bytes += sizeof(Frame) + size;
      }
    };
    while (pushed < 60 || !outbox.empty()) {
      if (pushed < 60 && random() % 2 == 0) {
        if (random() % 3 == 0) {
          outbox.Push({.kind = FrameKind::kImmediate, .immediate = pushed++});
          pushed_bytes += sizeof(Frame);
        } else {
          push_post(random() % 20 == 0 ? 2 * kMostFramesAhead + random() % 2 : 1 + random() % 5);
        }
      }
      if (pushed < 60 && random() % 8 == 0) {  // A post that is refused.
        const size_t before = outbox.size();
        const uint64_t bytes_before = outbox.waiting_bytes();
        outbox.Push({.kind = FrameKind::kWrite, .size_bytes = 10}, payload.data());
        EXPECT_EQ(outbox.waiting_bytes(), bytes_before + sizeof(Frame) + 10);
        outbox.Truncate(before);
        EXPECT_EQ(outbox.waiting_bytes(), bytes_before);
      }
      if (pushed < 60 && random() % 4 == 0) outbox.TellDone(done += random() % 3);
      if (random() % 3 != 0) continue;
      std::array<iovec, 5> parts;
      const uint64_t most = 1 + random() % 700;
      const size_t count = outbox.Gather(absl::MakeSpan(parts).subspan(0, 1 + random() % 5), most);
      uint64_t offered = 0;
      for (size_t i = 0; i < count; ++i) offered += parts[i].iov_len;
      ASSERT_LE(offered, most);
      uint64_t taken = random() % (offered + 1);
      outbox.Consume(taken);
      EXPECT_LE(outbox.waiting_bytes(), pushed_bytes);
      EXPECT_GE(outbox.waiting_bytes() + stream.size() + taken, pushed_bytes);
      for (size_t i = 0; i < count; ++i) {
        const auto* data = static_cast<const std::byte*>(parts[i].iov_base);
        const uint64_t size = std::min<uint64_t>(parts[i].iov_len, taken);
        stream.insert(stream.end(), data, data + size);
        taken -= size;
      }
    }
    EXPECT_EQ(outbox.waiting_bytes(), 0u);
    const Parsed parsed = Parse(stream, payload);
    ASSERT_EQ(parsed.immediates.size(), pushed);
    for (uint32_t i = 0; i < pushed; ++i) ASSERT_EQ(parsed.immediates[i], i);
    ASSERT_TRUE(std::is_sorted(parsed.done.begin(), parsed.done.end()));
    if (done > 0) {
      ASSERT_EQ(parsed.done.back(), done);
    }
  }
}

TEST(Outbox, OnlyWhatHasBegunIsKept) {
  const std::vector<std::byte> payload(100);
  Outbox outbox;
  std::array<iovec, 8> parts;
  const auto push = [&](RegionId source) {
    outbox.Push({.kind = FrameKind::kWrite, .flags = kEndsPost, .size_bytes = 100}, payload.data(),
                source);
  };
  push(RegionId{1});
  push(RegionId{2});
  outbox.KeepWhatHasBegun();
  EXPECT_TRUE(outbox.empty());
  push(RegionId{1});
  push(RegionId{2});
  ASSERT_EQ(outbox.Gather(absl::MakeSpan(parts), 1000), 4u);
  outbox.Consume(1);
  outbox.KeepWhatHasBegun();
  EXPECT_TRUE(outbox.ReadsFrom(RegionId{1}));
  EXPECT_FALSE(outbox.ReadsFrom(RegionId{2}));
  EXPECT_EQ(outbox.waiting_bytes(), sizeof(Frame) - 1 + 100);
  ASSERT_EQ(outbox.Gather(absl::MakeSpan(parts), 1000), 2u);
  EXPECT_EQ(parts[0].iov_len, sizeof(Frame) - 1);
}

TEST(Outbox, WhatLiesInARowIsOnePart) {
  const std::vector<std::byte> payload(100);
  Outbox outbox;
  std::array<iovec, 8> parts;
  for (uint64_t i = 0; i < 10; ++i) {
    const uint16_t flags = i == 9 ? kEndsPost : 0;
    outbox.Push({.kind = FrameKind::kWrite, .flags = flags, .size_bytes = 10},
                payload.data() + 10 * i);
  }
  ASSERT_EQ(outbox.Gather(absl::MakeSpan(parts), 1000), 2u);
  EXPECT_EQ(parts[0].iov_len, 10 * sizeof(Frame));
  EXPECT_EQ(parts[1].iov_base, payload.data());
  EXPECT_EQ(parts[1].iov_len, 100u);
}

}  // namespace
}  // namespace waybill::tcp
