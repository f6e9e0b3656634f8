// SPDX-License-Identifier: Apache-2.0

#include "kernels/digest.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/every_target.h"
#include "kernels/scalar.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

const size_t kLengths[] = {0,    1,    7,    8,    9,     15,    16,    17,   31,
                           32,   33,   63,   64,   65,    127,   128,   129,  2048,
                           4032, 4088, 4095, 4096, 4097,  4104,  4159,  4160, 4161,
                           8191, 8192, 8193, 8256, 12288, 12293, 65536, 70001};

// The patterns of golden/digest_vectors.py.
uint8_t PatternByte(const std::string& pattern, size_t i) {
  if (pattern == "zeros") return 0;
  if (pattern == "ones") return 0xff;
  if (pattern == "count") return static_cast<uint8_t>(i % 251);
  return MixByte(i);
}

TEST(Digest, MatchesTheGoldenVectors) {
  std::ifstream file("kernels/golden/digest_vectors.txt");
  size_t size, count = 0;
  std::string pattern, expected;
  while (file >> size >> pattern >> expected) {
    std::vector<uint8_t> data(size);
    for (size_t i = 0; i < size; ++i) data[i] = PatternByte(pattern, i);
    const uint64_t digest = std::stoull(expected, nullptr, 16);
    EXPECT_EQ(scalar::Digest(data.data(), size), digest) << size << " " << pattern;
    OnEveryTarget([&] { EXPECT_EQ(Digest(data.data(), size), digest) << size << " " << pattern; });
    ++count;
  }
  EXPECT_EQ(count, 60);
}

TEST(Digest, EqualsTheScalarTruthAtEveryLengthAndAlignment) {
  for (const size_t size : kLengths) {
    for (const size_t skew : {0, 1, 2, 4, 8, 33}) {
      const SkewedBytes data = SkewedBytes::Mixed(size, skew);
      const uint64_t sum = scalar::LeafSum(data.data(), size, 5);
      const uint64_t digest = scalar::Digest(data.data(), size);
      OnEveryTarget([&] {
        ASSERT_EQ(LeafSum(data.data(), size, 5), sum) << size << " bytes, skew " << skew;
        ASSERT_EQ(Digest(data.data(), size), digest) << size << " bytes, skew " << skew;
      });
    }
  }
}

TEST(DigestStream, AnyPiecesGiveTheSameSum) {
  const size_t size = 5 * kLeafBytes + 1234;
  const SkewedBytes data = SkewedBytes::Mixed(size);
  const uint64_t sum = scalar::LeafSum(data.data(), size, 0);
  OnEveryTarget([&] {
    for (const size_t piece :
         {1, 3, 8, 13, 63, 64, 65, 100, 256, 1000, 2048, 4095, 4096, 4097, 9000}) {
      DigestStream stream;
      for (size_t at = 0; at < size; at += piece) {
        stream.Absorb(data.data() + at, std::min(piece, size - at));
      }
      ASSERT_EQ(stream.sum(), sum) << "pieces of " << piece;
    }
  });
}

TEST(DigestStream, RandomPiecesWithCopiesAmongThemGiveTheSameSumAndBytes) {
  const size_t size = 9 * kLeafBytes + 77;
  const SkewedBytes data = SkewedBytes::Mixed(size);
  const uint64_t sum = scalar::LeafSum(data.data(), size, 3);
  OnEveryTarget([&] {
    std::mt19937_64 random(20240607);
    for (int round = 0; round < 200; ++round) {
      SkewedBytes copy(size, round % 65);
      DigestStream stream(3);
      for (size_t at = 0; at < size;) {
        const size_t largest = size_t{1} << (random() % 16);
        const size_t piece = std::min<size_t>(random() % largest + 1, size - at);
        switch (random() % 3) {
          case 0:
            stream.Absorb(data.data() + at, piece);
            std::copy_n(data.data() + at, piece, copy.data() + at);
            break;
          case 1:
            stream.AbsorbCopy(copy.data() + at, data.data() + at, piece, Stores::kCached);
            break;
          case 2:
            stream.AbsorbCopy(copy.data() + at, data.data() + at, piece, Stores::kStreaming);
            break;
        }
        at += piece;
      }
      StreamFence();
      ASSERT_EQ(stream.sum(), sum) << "round " << round;
      ASSERT_TRUE(std::equal(data.data(), data.data() + size, copy.data())) << "round " << round;
      ASSERT_TRUE(copy.GuardsHold());
    }
  });
}

TEST(DigestStream, AbsorbsWhatItStoresWhileSomebodyWritesToTheSource) {
  // Two mappings of the same pages: the writer's stores are another process's as far as C++ knows.
  const size_t size = 16 * kLeafBytes;
  const int memory = memfd_create("source", 0);
  ASSERT_EQ(ftruncate(memory, size), 0);
  void* read_map = mmap(nullptr, size, PROT_READ, MAP_SHARED, memory, 0);
  void* write_map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  ASSERT_NE(read_map, MAP_FAILED);
  ASSERT_NE(write_map, MAP_FAILED);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    volatile uint64_t* words = static_cast<uint64_t*>(write_map);
    for (uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      words[i * 7 % (size / 8)] = i * 0x9e3779b97f4a7c15;
    }
  });
  OnEveryTarget([&] {
    SkewedBytes copy(size);
    for (int round = 0; round < 50; ++round) {
      for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
        for (const size_t odd : {0, 5}) {  // The second begins within a word.
          DigestStream stream;
          stream.AbsorbCopy(copy.data(), read_map, odd, stores);
          stream.AbsorbCopy(copy.data() + odd, static_cast<std::byte*>(read_map) + odd, size - odd,
                            stores);
          StreamFence();
          ASSERT_EQ(stream.sum(), LeafSum(copy.data(), size, 0)) << "round " << round;
        }
      }
    }
  });
  stop = true;
  writer.join();
  munmap(read_map, size);
  munmap(write_map, size);
  close(memory);
}

TEST(DigestStream, TouchesNothingOutsideItsPieces) {
  // A page with forbidden ones on either side.
  const size_t page = 4096;
  void* map = mmap(nullptr, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  uint8_t* data = static_cast<uint8_t*>(map) + page;
  ASSERT_EQ(mprotect(data, page, PROT_READ | PROT_WRITE), 0);
  for (size_t i = 0; i < page; ++i) data[i] = MixByte(i);
  OnEveryTarget([&] {
    for (size_t before = 0; before < 64;
         before += 3) {  // The place in a stripe at which the piece begins.
      for (const size_t size : {1, 7, 8, 9, 16, 40, 56, 63, 64, 65, 72, 120, 200}) {
        for (uint8_t* piece : {data, data + page - size}) {
          SkewedBytes expected(before + size), copy(size);
          std::fill_n(expected.data(), before, 0);
          std::copy_n(piece, size, expected.data() + before);
          const uint64_t sum = scalar::LeafSum(expected.data(), expected.size(), 0);
          DigestStream from_piece, to_piece;
          from_piece.Absorb(expected.data(), before);
          from_piece.AbsorbCopy(copy.data(), piece, size, Stores::kCached);
          ASSERT_EQ(from_piece.sum(), sum) << before << " bytes, then " << size;
          ASSERT_TRUE(copy.GuardsHold());
          to_piece.Absorb(expected.data(), before);
          to_piece.AbsorbCopy(piece, copy.data(), size, Stores::kStreaming);
          StreamFence();
          ASSERT_EQ(to_piece.sum(), sum) << before << " bytes, then " << size;
        }
      }
    }
  });
  munmap(map, 3 * page);
}

TEST(DigestStream, TheSumMayBeAskedForAtAnyTime) {
  const SkewedBytes data = SkewedBytes::Mixed(2 * kLeafBytes + 100);
  DigestStream stream;
  for (size_t size = 0; size < data.size(); ++size) {
    if (size % 97 == 0 || size % kLeafBytes < 2) {
      ASSERT_EQ(stream.sum(), scalar::LeafSum(data.data(), size, 0)) << size << " bytes";
    }
    stream.Absorb(data.data() + size, 1);
  }
}

TEST(DigestStream, ThreadsMayShareAStreamAtLeafBounds) {
  const size_t leaves = 37;
  const size_t size = leaves * kLeafBytes - 5;
  const SkewedBytes data = SkewedBytes::Mixed(size);
  for (const size_t thread_count : {1, 2, 3, 8}) {
    std::vector<uint64_t> sums(thread_count);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < thread_count; ++t) {
      threads.emplace_back([&, t] {
        const size_t begin = leaves * t / thread_count;
        const size_t end = std::min(leaves * (t + 1) / thread_count * kLeafBytes, size);
        sums[t] = LeafSum(data.data() + begin * kLeafBytes, end - begin * kLeafBytes, begin);
      });
    }
    uint64_t sum = 0;
    for (size_t t = 0; t < thread_count; ++t) {
      threads[t].join();
      sum += sums[t];
    }
    EXPECT_EQ(FinishDigest(sum, size), scalar::Digest(data.data(), size)) << thread_count;
  }
}

// Changes that the digest must detect. It would miss each of these by chance once in 2^64.
class DigestSees : public testing::Test {
 protected:
  // Remembers the digest of `data_`; false where some other data already had it.
  bool IsNew() { return seen_.insert(Digest(data_.data(), data_.size())).second; }

  std::vector<uint8_t> data_;
  std::set<uint64_t> seen_;
};

TEST_F(DigestSees, EverySingleBit) {
  for (const bool zeros : {false, true}) {
    data_.assign(3 * kLeafBytes - 3, 0);
    if (!zeros)
      std::generate(data_.begin(), data_.end(), [i = 0]() mutable { return MixByte(i++); });
    seen_.clear();
    ASSERT_TRUE(IsNew());
    for (size_t bit = 0; bit < data_.size() * 8; ++bit) {
      data_[bit / 8] ^= 1 << (bit % 8);
      ASSERT_TRUE(IsNew()) << "bit " << bit;
      data_[bit / 8] ^= 1 << (bit % 8);
    }
  }
}

// Bytes and words that change places, in data where little else tells them apart.
TEST_F(DigestSees, EveryPairOfSwappedWordsInALeaf) {
  data_.assign(kLeafBytes, 0);
  for (size_t a = 0; a < kLeafBytes; a += 8) {
    data_[a] = 1;
    for (size_t b = 0; b < kLeafBytes; b += 8) {
      if (a == b) continue;
      data_[b] = 2;
      ASSERT_TRUE(IsNew()) << "1 at " << a << ", 2 at " << b;
      data_[b] = 0;
    }
    data_[a] = 0;
  }
}

TEST_F(DigestSees, AMovedByte) {
  data_.assign(3 * kLeafBytes, 0);
  for (size_t at = 0; at < data_.size(); ++at) {
    data_[at] = 0x80;
    ASSERT_TRUE(IsNew()) << at;
    data_[at] = 0;
  }
}

TEST_F(DigestSees, SwappedBlocksOfEverySize) {
  std::vector<uint8_t> original(8 * kLeafBytes);
  std::generate(original.begin(), original.end(), [i = 0]() mutable { return MixByte(i++); });
  for (const size_t block : {size_t{4}, size_t{64}, size_t{256}, size_t{2048}, kLeafBytes}) {
    seen_.clear();
    data_ = original;
    ASSERT_TRUE(IsNew());
    const size_t count = std::min<size_t>(data_.size() / block, 64);
    for (size_t a = 0; a < count; ++a) {
      for (size_t b = a + 1; b < count; ++b) {
        data_ = original;
        std::swap_ranges(data_.begin() + a * block, data_.begin() + (a + 1) * block,
                         data_.begin() + b * block);
        ASSERT_TRUE(IsNew()) << "blocks of " << block << ": " << a << " and " << b;
      }
    }
  }
}

TEST_F(DigestSees, EveryLengthOfZeros) {
  for (size_t size = 0; size < 3 * kLeafBytes; ++size) {
    data_.assign(size, 0);
    ASSERT_TRUE(IsNew()) << size;
  }
}

TEST_F(DigestSees, ALeafThatCameTwiceInPlaceOfAnother) {
  data_.assign(4 * kLeafBytes, 0);
  for (size_t leaf = 0; leaf < 4; ++leaf) data_[leaf * kLeafBytes] = static_cast<uint8_t>(leaf + 1);
  const std::vector<uint8_t> original = data_;
  ASSERT_TRUE(IsNew());
  for (size_t a = 0; a < 4; ++a) {
    for (size_t b = 0; b < 4; ++b) {
      if (a == b) continue;
      data_ = original;
      std::copy_n(original.begin() + a * kLeafBytes, kLeafBytes, data_.begin() + b * kLeafBytes);
      ASSERT_TRUE(IsNew()) << a << " over " << b;
    }
  }
}

TEST(DigestConstants, NoTwoKeysShareAHalf) {
  std::set<uint32_t> low, high;
  for (const uint64_t key : scalar::kDigestConstants.keys) {
    EXPECT_TRUE(low.insert(static_cast<uint32_t>(key)).second);
    EXPECT_TRUE(high.insert(static_cast<uint32_t>(key >> 32)).second);
  }
}

}  // namespace
}  // namespace waybill::kernels
