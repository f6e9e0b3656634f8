// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/types/span.h"
#include "core/base/sha256.h"
#include "core/change/change_decoder.h"
#include "core/change/change_encoder.h"
#include "core/change/chunk_encoding.h"
#include "core/change/reference_codec.h"
#include "kernels/copy.h"
#include "kernels/every_target.h"
#include "kernels/test_bytes.h"

namespace waybill {
namespace {

using kernels::OnEveryTarget;
using kernels::SkewedBytes;
using kernels::Stores;
using reference::Bytes;

absl::Span<const std::byte> ToSpan(const Bytes& bytes) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
}

absl::Span<std::byte> ToSpan(SkewedBytes& bytes) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
}

SkewedBytes Skewed(const Bytes& bytes, size_t skew_bytes) {
  SkewedBytes skewed(bytes.size(), skew_bytes);
  std::copy(bytes.begin(), bytes.end(), skewed.data());
  return skewed;
}

struct Versions {
  Bytes before, newest;
};

// The function random() of golden/change_vectors.py.
uint64_t Random(uint64_t x) {
  x = (x + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// The patterns of golden/change_vectors.py.
template <typename T>
Versions PatternOf(size_t elements, size_t row_elements, uint64_t permille,
                   const std::string& kind) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  std::vector<T> before(elements), newest(elements);
  for (size_t i = 0; i < elements; ++i) {
    before[i] = newest[i] = static_cast<T>(Random(4 * i));
    if (Random(4 * (i / row_elements) + 1) % 1000 >= permille) continue;
    const uint64_t r = Random(4 * i + 2);
    uint64_t magnitude = 0;
    if (kind == "tail") {
      magnitude = (r & ((uint64_t{1} << (kBits - 1)) - 1)) >> Random(4 * i + 3) % kBits;
    }
    const uint64_t distance = r >> 63 != 0 ? ~magnitude : magnitude + 1;
    newest[i] =
        static_cast<T>(kind == "any" ? r : Order(static_cast<T>(Order(before[i]) + distance)));
  }
  Versions versions{Bytes(elements * sizeof(T)), Bytes(elements * sizeof(T))};
  if (elements == 0) return versions;
  std::memcpy(versions.before.data(), before.data(), versions.before.size());
  std::memcpy(versions.newest.data(), newest.data(), versions.newest.size());
  return versions;
}

Versions Pattern(size_t element_bytes, size_t elements, size_t row_elements, uint64_t permille,
                 const std::string& kind) {
  if (element_bytes == 1) return PatternOf<uint8_t>(elements, row_elements, permille, kind);
  if (element_bytes == 2) return PatternOf<uint16_t>(elements, row_elements, permille, kind);
  return PatternOf<uint32_t>(elements, row_elements, permille, kind);
}

// Encodes with the fast encoder, and checks what it promises beside the bytes.
Bytes Encode(const Versions& versions, size_t element_bytes, size_t skew_bytes = 0) {
  const ElementWidth width = static_cast<ElementWidth>(element_bytes);
  SkewedBytes newest = Skewed(versions.newest, skew_bytes), before = Skewed(versions.before, 0);
  SkewedBytes out(EncodingRoomBytes(newest.size()), skew_bytes);
  const auto encoded = EncodeChanges(ToSpan(newest), ToSpan(before), width, ToSpan(out));
  const auto measured = MeasureChanges(ToSpan(newest), ToSpan(before), width);
  EXPECT_TRUE(encoded.ok() && measured.ok()) << encoded.status();
  if (!encoded.ok() || !measured.ok()) return {};
  EXPECT_EQ(encoded->kind, measured->kind);
  EXPECT_EQ(encoded->size_bytes, measured->size_bytes);
  EXPECT_LE(encoded->size_bytes, 1 + newest.size());
  EXPECT_EQ(out.data()[0], FirstByte(encoded->kind, width));
  EXPECT_TRUE(out.GuardsHold());
  return Bytes(out.data(), out.data() + encoded->size_bytes);
}

// Decodes with the fast decoder through the cache, past it, and in place, between guards.
absl::StatusOr<Bytes> Apply(const Bytes& encoding, const Bytes& before, size_t element_bytes,
                            size_t skew_bytes = 0) {
  const ElementWidth width = static_cast<ElementWidth>(element_bytes);
  SkewedBytes cached(before.size(), skew_bytes), streamed(before.size(), skew_bytes);
  SkewedBytes in_place = Skewed(before, skew_bytes);
  const absl::Status status =
      ApplyChanges(ToSpan(encoding), ToSpan(before), width, ToSpan(cached), Stores::kCached);
  EXPECT_EQ(
      ApplyChanges(ToSpan(encoding), ToSpan(before), width, ToSpan(streamed), Stores::kStreaming),
      status);
  EXPECT_EQ(
      ApplyChanges(ToSpan(encoding), ToSpan(in_place), width, ToSpan(in_place), Stores::kStreaming),
      status);
  kernels::StreamFence();
  EXPECT_TRUE(cached.GuardsHold() && streamed.GuardsHold() && in_place.GuardsHold());
  if (!status.ok()) return status;
  Bytes newest(cached.data(), cached.data() + cached.size());
  EXPECT_TRUE(std::equal(newest.begin(), newest.end(), streamed.data()));
  EXPECT_TRUE(std::equal(newest.begin(), newest.end(), in_place.data()));
  return newest;
}

void ExpectBothWays(const Versions& versions, size_t element_bytes, const Bytes& expected,
                    size_t skew_bytes = 0) {
  OnEveryTarget([&] {
    ASSERT_EQ(Encode(versions, element_bytes, skew_bytes), expected);
    const auto newest = Apply(expected, versions.before, element_bytes, skew_bytes);
    ASSERT_TRUE(newest.ok()) << newest.status();
    ASSERT_EQ(*newest, versions.newest);
  });
}

Bytes FromHex(const std::string& text) {
  const std::string bytes = text == "-" ? "" : absl::HexStringToBytes(text);
  return Bytes(bytes.begin(), bytes.end());
}

TEST(Changes, MatchTheGoldenVectors) {
  std::ifstream file("core/change/golden/change_vectors.txt");
  size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    SCOPED_TRACE(line);
    std::istringstream fields(line);
    std::string what, before, newest, kind, expected;
    size_t element_bytes, elements, row_elements, permille, size_bytes;
    fields >> what >> element_bytes;
    if (what == "bytes") {
      fields >> before >> newest >> expected;
      const Versions versions{FromHex(before), FromHex(newest)};
      ASSERT_EQ(reference::EncodeChanges(versions.newest, versions.before, element_bytes),
                FromHex(expected));
      ExpectBothWays(versions, element_bytes, FromHex(expected));
      continue;
    }
    fields >> elements >> row_elements >> permille >> kind >> size_bytes >> expected;
    const Versions versions = Pattern(element_bytes, elements, row_elements, permille, kind);
    const Bytes encoding =
        reference::EncodeChanges(versions.newest, versions.before, element_bytes);
    ASSERT_EQ(encoding.size(), size_bytes);
    const std::string hash = Sha256({reinterpret_cast<const char*>(encoding.data()), size_bytes});
    ASSERT_EQ(absl::BytesToHexString(hash), expected);
    ExpectBothWays(versions, element_bytes, encoding);
  }
  EXPECT_EQ(count, 57);
}

TEST(Changes, EqualTheReferenceAtEveryLengthAlignmentAndDensity) {
  for (const size_t element_bytes : {1, 2, 4}) {
    for (const size_t elements : {0, 1, 2, 63, 64, 65, 1000, 16383, 16384, 16385, 40000}) {
      for (const uint64_t permille : {0, 1, 10, 200, 400, 600, 900, 1000}) {
        for (const std::string kind : {"unit", "tail", "any"}) {
          const size_t row_elements = permille == 200 ? 5 : 1;
          SCOPED_TRACE(testing::Message() << elements << " elements of " << element_bytes
                                          << " bytes, " << permille << " permille, " << kind);
          const Versions versions = Pattern(element_bytes, elements, row_elements, permille, kind);
          const Bytes encoding =
              reference::EncodeChanges(versions.newest, versions.before, element_bytes);
          ASSERT_EQ(reference::ApplyChanges(encoding, versions.before, element_bytes),
                    versions.newest);
          ExpectBothWays(versions, element_bytes, encoding, permille % 7);
        }
      }
    }
  }
}

TEST(Changes, EveryPairOfBytesAndEveryPatternOfTwoBytesComesBack) {
  Versions bytes{Bytes(1 << 16), Bytes(1 << 16)};
  for (size_t i = 0; i < bytes.before.size(); ++i) {
    bytes.before[i] = static_cast<uint8_t>(i);
    bytes.newest[i] = static_cast<uint8_t>(i >> 8);
  }
  ExpectBothWays(bytes, 1, reference::EncodeChanges(bytes.newest, bytes.before, 1));
  // Each pattern moves by one unit, NaNs, infinities and zeros too; the last one wraps around.
  Versions patterns{Bytes(2 << 16), Bytes(2 << 16)};
  for (size_t i = 0; i < 1 << 16; ++i) {
    const uint16_t before = static_cast<uint16_t>(i);
    const uint16_t newest = Order(static_cast<uint16_t>(Order(before) + 1));
    std::memcpy(&patterns.before[2 * i], &before, 2);
    std::memcpy(&patterns.newest[2 * i], &newest, 2);
  }
  const Bytes encoding = reference::EncodeChanges(patterns.newest, patterns.before, 2);
  EXPECT_EQ(encoding.size(), 1 + 4 * (3 + 4 + 16384 / 4));  // Two bits for each.
  ExpectBothWays(patterns, 2, encoding);
}

TEST(Order, NeighbouringFloatsAreNeighbours) {
  EXPECT_EQ(Order<uint16_t>(0x0000), 0);       // 0
  EXPECT_EQ(Order<uint16_t>(0x8000), 0xffff);  // -0
  EXPECT_EQ(Order<uint16_t>(0x8001), 0xfffe);  // The largest below -0.
  EXPECT_EQ(Order<uint16_t>(0x3f80) + 1, Order<uint16_t>(0x3f81));
  EXPECT_EQ(Order<uint16_t>(0xbf80) - 1, Order<uint16_t>(0xbf81));
  for (uint32_t i = 0; i < 0x10000; ++i) {
    EXPECT_EQ(Order(Order(static_cast<uint16_t>(i))), i);
  }
}

// Returns the bits that an element takes if `share` of them change, each by one unit up or down.
double EntropyBits(double share) {
  return -share * std::log2(share) - (1 - share) * std::log2(1 - share) + share;
}

TEST(Changes, TakeLittleMoreThanTheirEntropy) {
  for (const auto& [permille, most] :
       std::vector<std::pair<uint64_t, double>>{{1, 1.25}, {10, 1.15}, {100, 1.2}}) {
    const size_t elements = 1 << 20;
    const Versions versions = Pattern(2, elements, 1, permille, "unit");
    const double bits = static_cast<double>(Encode(versions, 2).size()) * 8 / elements;
    EXPECT_LE(bits, most * EntropyBits(static_cast<double>(permille) / 1000)) << permille;
    if (permille == 10) {
      EXPECT_LE(bits / 16, 0.008);
    }
  }
}

TEST(Changes, RowsThatChangedInEveryElementTakeTheirBytes) {
  for (const size_t row_elements : {384, 768, 4096}) {
    const size_t elements = 1 << 20;
    const Versions versions = Pattern(2, elements, row_elements, 50, "any");
    size_t changed = 0;
    for (size_t i = 0; i < elements; ++i) {
      changed += Random(4 * (i / row_elements) + 1) % 1000 < 50 ? 1 : 0;
    }
    EXPECT_LE(static_cast<double>(Encode(versions, 2).size()),
              1.02 * 2 * static_cast<double>(changed))
        << row_elements;
  }
}

TEST(Changes, ALargestChunkIsTakenAndALargerOneIsNot) {
  Versions versions{Bytes(kMostChunkBytes), Bytes(kMostChunkBytes)};
  versions.newest.back() = 1;
  ExpectBothWays(versions, 4, reference::EncodeChanges(versions.newest, versions.before, 4));

  const Bytes larger(kMostChunkBytes + 4);
  SkewedBytes out(EncodingRoomBytes(larger.size()));
  const auto encoded =
      EncodeChanges(ToSpan(larger), ToSpan(larger), ElementWidth::kFour, ToSpan(out));
  EXPECT_EQ(encoded.status().message(),
            "a chunk has 4194308 bytes; at most 4194304 and a multiple of 4 are allowed");
  EXPECT_FALSE(Apply({0x00}, larger, 4).ok());
}

TEST(Changes, ArgumentsThatDoNotFitEachOtherAreRejected) {
  const Bytes three(3), four(4);
  SkewedBytes room(EncodingRoomBytes(4)), little_room(EncodingRoomBytes(4) - 1), target(4);
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message(MeasureChanges(ToSpan(three), ToSpan(four), ElementWidth::kOne)),
            "a chunk of 3 bytes has 4 bytes in the version before");
  EXPECT_EQ(message(MeasureChanges(ToSpan(three), ToSpan(three), ElementWidth::kTwo)),
            "a chunk has 3 bytes; at most 4194304 and a multiple of 2 are allowed");
  EXPECT_EQ(
      message(EncodeChanges(ToSpan(four), ToSpan(four), ElementWidth::kOne, ToSpan(little_room))),
      "encode a chunk of 4 bytes into 19; 20 are needed");
  EXPECT_EQ(ApplyChanges(ToSpan(Bytes{0x00}), ToSpan(three), ElementWidth::kOne, ToSpan(target),
                         Stores::kCached)
                .message(),
            "apply 1 bytes of changes to a chunk of 4 bytes: a chunk of 4 bytes has 3 bytes in the "
            "version before");
}

// Returns an encoding of one block of BF16, with the given header.
Bytes Block(uint32_t count, uint32_t index_code, uint32_t value_code, const Bytes& rest) {
  const uint32_t number = BlockHeader{count, index_code, value_code}.Pack();
  Bytes bytes = {0x12};
  for (const int shift : {0, 8, 16}) bytes.push_back(static_cast<uint8_t>(number >> shift));
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

TEST(ApplyChanges, RejectsWhatNoEncoderMakes) {
  const struct {
    const char* name;
    Bytes encoding;
    const char* error;
  } kCases[] = {
      {"nothing", {}, "the encoding has 0 bytes, of at least 1"},
      {"another kind", {0x02}, "the first byte is 0x2; 0x0, 0x1 and 0x12 are allowed"},
      {"another width", {0x14, 0, 0, 0}, "the first byte is 0x14; 0x0, 0x1 and 0x12 are allowed"},
      {"more than unchanged", {0x00, 0}, "1 bytes follow the first byte 0x0; 0 are allowed"},
      {"less than whole", Bytes(8, 1), "7 bytes follow the first byte 0x1; 8 are allowed"},
      {"more than whole", Bytes(10, 1), "9 bytes follow the first byte 0x1; 8 are allowed"},
      {"no block", {0x12}, "block 0: the block begins with 0 bytes, of at least 3"},
      {"less than a header", {0x12, 0, 0}, "block 0: the block begins with 2 bytes, of at least 3"},
      {"codes of nothing", Block(0, 1, 0, {}),
       "block 0: 0 elements or runs changed, with codes 1 and 0; the block has 4 elements"},
      {"more than the block", Block(5, 0, 0, {}),
       "block 0: 5 elements or runs changed, with codes 0 and 0; the block has 4 elements"},
      {"a count that overflows", Block(0x7fff, 15, 31, {}),
       "block 0: 32767 elements or runs changed, with codes 15 and 31; the block has 4 elements"},
      {"another value code", Block(1, 0, 15, {1, 1}),
       "block 0: the value code is 15; allowed are 0 to 14 and 31"},
      {"a gap beyond the block", Block(1, 0, 0, {0x10, 1}),
       "block 0: element 4 changed; the block has 4 elements"},
      {"the largest gap", Block(1, 14, 0, {0, 0x80, 0xff, 0xff, 1}),
       "block 0: element 262143 changed; the block has 4 elements"},
      {"gaps that add up", Block(2, 0, 0, {0x48, 1}),
       "block 0: element 6 changed; the block has 4 elements"},
      {"no gaps", Block(1, 3, 0, {}), "block 0: codes take 4 bytes, of which 0 are left"},
      {"a gap that fills up", Block(1, 0, 0, {0x03, 1}),
       "block 0: the last byte of codes is filled up with bits 1; only 0 is"},
      {"no distances", Block(1, 0, 0, {1}), "block 0: codes take 5 bytes, of which 0 are left"},
      {"a distance that fills up", Block(1, 0, 0, {1, 0x81}),
       "block 0: the last byte of codes is filled up with bits 32; only 0 is"},
      {"a distance of 17 bits", Block(1, 0, 0, {1, 0, 0, 1, 0, 0}),
       "block 0: the distance of element 0 is a code of 16 zeros with k = 0, which is too large "
       "for "
       "an element"},
      {"a magnitude of 2^15", Block(1, 0, 0, {1, 0, 0x80, 1, 0}),
       "block 0: the distance of element 0 is a code of 15 zeros with k = 0, which is too large "
       "for "
       "an element"},
      {"less than raw", Block(1, 0, 31, {1, 0}),
       "block 0: raw values take 2 bytes, of which 1 are left"},
      {"less than runs", Block(1, 15, 31, {0, 0, 1}),
       "block 0: runs take 4 bytes, of which 3 are left"},
      {"an empty run", Block(1, 15, 31, {1, 0, 0, 0}),
       "block 0: a run of elements [1, 1) behind element 0; the block has 4 elements"},
      {"a run beyond the block", Block(1, 15, 31, {1, 0, 4, 0}),
       "block 0: a run of elements [1, 5) behind element 0; the block has 4 elements"},
      {"a run that overflows", Block(1, 15, 31, {1, 0, 0xff, 0xff}),
       "block 0: a run of elements [1, 65536) behind element 0; the block has 4 elements"},
      {"runs out of order", Block(2, 15, 31, {2, 0, 1, 0, 0, 0, 1, 0}),
       "block 0: a run of elements [0, 1) behind element 3; the block has 4 elements"},
      {"trailing bytes", {0x12, 0, 0, 0, 7, 7}, "2 bytes follow the last block; none are allowed"},
  };
  const Bytes before = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.name);
    EXPECT_FALSE(reference::ApplyChanges(c.encoding, before, 2).has_value());
    const auto newest = Apply(c.encoding, before, 2);
    EXPECT_EQ(newest.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(newest.status().message()),
              "apply " + std::to_string(c.encoding.size()) +
                  " bytes of changes to a chunk of 8 bytes: " + c.error);
  }
}

TEST(ApplyChanges, RejectsEveryTruncationAndEveryTrailingByte) {
  for (const size_t element_bytes : {1, 2, 4}) {
    const Versions scattered = Pattern(element_bytes, 20000, 1, 10, "tail");
    const Versions rows = Pattern(element_bytes, 20000, 100, 20, "any");
    for (const Versions& versions : {scattered, rows}) {
      Bytes encoding = Encode(versions, element_bytes);
      encoding.push_back(0);
      EXPECT_FALSE(Apply(encoding, versions.before, element_bytes).ok());
      encoding.pop_back();
      while (!encoding.empty()) {
        encoding.pop_back();
        ASSERT_FALSE(Apply(encoding, versions.before, element_bytes).ok()) << encoding.size();
      }
    }
  }
}

TEST(ApplyChanges, AcceptsOfDamagedBytesWhatTheReferenceAccepts) {
  std::mt19937_64 random(3);
  size_t accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    const size_t element_bytes = size_t{1} << round % 3;
    const Versions versions = Pattern(element_bytes, 70, 1 + round % 9, 100 + round % 800, "tail");
    Bytes encoding = Encode(versions, element_bytes);
    for (uint64_t i = random() % 3; i <= 3; ++i) {
      encoding[random() % encoding.size()] ^= 1 << random() % 8;
    }
    const auto expected = reference::ApplyChanges(encoding, versions.before, element_bytes);
    const auto found = Apply(encoding, versions.before, element_bytes);
    ASSERT_EQ(found.ok(), expected.has_value()) << "round " << round << ": " << found.status();
    if (found.ok()) {
      ASSERT_EQ(*found, *expected) << "round " << round;
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 500);  // Damage to values is the digest's to detect.
}

}  // namespace
}  // namespace waybill
