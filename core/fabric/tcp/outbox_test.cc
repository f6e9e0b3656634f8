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
    EXPECT_LE(at + frame.size_bytes, stream.size());
    EXPECT_EQ(
        std::memcmp(stream.data() + at, payload.data() + frame.offset_bytes, frame.size_bytes), 0);
    at += frame.size_bytes;
  }
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
    uint64_t done = 0;
    while (pushed < 60 || !outbox.empty()) {
      if (pushed < 60 && random() % 2 == 0) {
        const uint64_t offset = random() % 1000;
        const uint64_t size = random() % (1000 - offset);
        if (random() % 3 == 0) {
          outbox.Push({.kind = FrameKind::kImmediate, .immediate = pushed++});
        } else {
          outbox.Push({FrameKind::kWrite, 0, pushed++, 0, offset, size}, payload.data() + offset);
        }
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
      for (size_t i = 0; i < count; ++i) {
        const auto* data = static_cast<const std::byte*>(parts[i].iov_base);
        const uint64_t size = std::min<uint64_t>(parts[i].iov_len, taken);
        stream.insert(stream.end(), data, data + size);
        taken -= size;
      }
    }
    const Parsed parsed = Parse(stream, payload);
    ASSERT_EQ(parsed.immediates.size(), 60u);
    for (uint32_t i = 0; i < 60; ++i) ASSERT_EQ(parsed.immediates[i], i);
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
  outbox.Push({.kind = FrameKind::kWrite, .size_bytes = 100}, payload.data(), RegionId{1});
  outbox.Push({.kind = FrameKind::kWrite, .size_bytes = 100}, payload.data(), RegionId{2});
  outbox.KeepWhatHasBegun();
  EXPECT_TRUE(outbox.empty());
  outbox.Push({.kind = FrameKind::kWrite, .size_bytes = 100}, payload.data(), RegionId{1});
  outbox.Push({.kind = FrameKind::kWrite, .size_bytes = 100}, payload.data(), RegionId{2});
  ASSERT_EQ(outbox.Gather(absl::MakeSpan(parts), 1000), 4u);
  outbox.Consume(1);
  outbox.KeepWhatHasBegun();
  EXPECT_TRUE(outbox.ReadsFrom(RegionId{1}));
  EXPECT_FALSE(outbox.ReadsFrom(RegionId{2}));
  ASSERT_EQ(outbox.Gather(absl::MakeSpan(parts), 1000), 2u);
  EXPECT_EQ(parts[0].iov_len, sizeof(Frame) - 1);
}

}  // namespace
}  // namespace waybill::tcp
