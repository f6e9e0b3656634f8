// SPDX-License-Identifier: Apache-2.0

// The kernels that copy, cast, transpose and digest, held to the bits of scalar.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/cast.h"
#include "kernels/cuda/digest.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/test_memory.h"
#include "kernels/cuda/transpose.h"
#include "kernels/elements.h"
#include "kernels/quantise_inputs.h"
#include "kernels/scalar.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels::cuda {
namespace {

#define ASSERT_QUEUED(call)                        \
  do {                                             \
    const Outcome outcome = (call);                \
    ASSERT_TRUE(outcome.ok()) << outcome.reason(); \
  } while (false)

// A sum that begins as 0.
class DeviceSum {
 public:
  DeviceSum() : bytes_("\0\0\0\0\0\0\0", 8) {}

  LeafSum From(uint64_t first_leaf) const {
    return {reinterpret_cast<uint64_t*>(bytes_.data()), first_leaf};
  }
  uint64_t Read() const {
    uint64_t sum;
    std::memcpy(&sum, bytes_.Read().data(), 8);
    return sum;
  }

 private:
  DeviceBytes bytes_;
};

class StreamKernels : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = TheMemory().Reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  const Stream stream_ = TheMemory().Reason().empty() ? TheMemory().stream() : nullptr;
};

const size_t kLengths[] = {0,    1,    7,    8,    9,    15,    16,    17,   24,   63,
                           64,   65,   511,  512,  513,  4080,  4087,  4088, 4095, 4096,
                           4097, 4104, 8191, 8192, 8193, 32768, 32769, 70001};

TEST_F(StreamKernels, DigestOfEveryLengthAndAlignment) {
  for (const size_t size : kLengths) {
    for (const size_t skew : {0, 1, 2, 4, 8, 33}) {
      const SkewedBytes bytes = SkewedBytes::Mixed(size, skew);
      const DeviceBytes data(bytes);
      const DeviceSum sum;
      ASSERT_QUEUED(AddLeaves(sum.From(5), data.data(), size, stream_));
      ASSERT_EQ(sum.Read(), scalar::LeafSum(bytes.data(), size, 5)) << size << ", skew " << skew;
    }
  }
}

TEST_F(StreamKernels, PiecesAtLeafBoundsAddUpToTheDigest) {
  const SkewedBytes bytes = SkewedBytes::Mixed(9 * 4096 + 77);
  const DeviceBytes data(bytes);
  const DeviceSum sum;
  const size_t bounds[] = {5 * 4096, 9 * 4096, bytes.size()};
  size_t begin = 0;
  for (const size_t end : bounds) {
    ASSERT_QUEUED(AddLeaves(sum.From(begin / 4096), data.data() + begin, end - begin, stream_));
    begin = end;
  }
  EXPECT_EQ(scalar::FinishDigest(sum.Read(), bytes.size()),
            scalar::Digest(bytes.data(), bytes.size()));
}

struct RowsCase {
  size_t rows, row_bytes;
  ptrdiff_t src_pitch, dst_pitch;
  size_t src_skew, dst_skew;
};

const RowsCase kRowsCases[] = {
    {1, 1, 1, 1, 0, 0},           {1, 10001, 0, 0, 0, 0},
    {1, 10001, 0, 0, 3, 5},       {7, 16, 32, 16, 0, 0},
    {300, 16, 48, 16, 0, 16},     {100, 256, 1024, 256, 0, 0},  // Packs.
    {100, 256, 256, 1024, 0, 0},                                // Unpacks.
    {50, 1000, 1000, 1000, 0, 0},                               // One piece.
    {50, 1000, 2000, 1000, 0, 8}, {40, 1000, 1004, 1000, 4, 0},
    {40, 1002, 1004, 1006, 2, 2}, {33, 777, 1000, 777, 0, 0},
    {33, 777, 779, 781, 1, 3},    {5000, 1, 3, 1, 0, 0},
    {3000, 3, 5, 3, 0, 0},        {9, 4096, 8192, 4096, 0, 0},
    {9, 4104, 8192, 4104, 0, 0},  {3, 20000, 20016, 20000, 0, 0},
    {60, 512, -512, 512, 0, 0},  // Backwards.
    {60, 500, 512, -504, 4, 4},
};

TEST_F(StreamKernels, RowsAreCopiedAndDigested) {
  for (const RowsCase& c : kRowsCases) {
    SCOPED_TRACE(testing::Message()
                 << c.rows << " x " << c.row_bytes << ", " << c.src_pitch << " to " << c.dst_pitch);
    const auto extent = [&](ptrdiff_t pitch) {
      return (c.rows - 1) * static_cast<size_t>(std::abs(pitch)) + c.row_bytes;
    };
    // The place of row 0.
    const auto first = [&](ptrdiff_t pitch) {
      return pitch < 0 ? (c.rows - 1) * static_cast<size_t>(-pitch) : 0;
    };
    const SkewedBytes src = SkewedBytes::Mixed(extent(c.src_pitch), c.src_skew);
    std::vector<uint8_t> packed;
    std::vector<uint8_t> expected(extent(c.dst_pitch), 0xa5);
    for (size_t r = 0; r < c.rows; ++r) {
      const ptrdiff_t row = static_cast<ptrdiff_t>(r);
      const uint8_t* from = src.data() + first(c.src_pitch) + row * c.src_pitch;
      packed.insert(packed.end(), from, from + c.row_bytes);
      std::copy_n(from, c.row_bytes, expected.data() + first(c.dst_pitch) + row * c.dst_pitch);
    }
    const uint64_t digest = scalar::LeafSum(packed.data(), packed.size(), 2);
    const DeviceBytes from(src);
    for (const bool wants_digest : {false, true}) {
      const DeviceBytes to(expected.size(), c.dst_skew);
      const DeviceSum sum;
      ASSERT_QUEUED(CopyRows(to.data() + first(c.dst_pitch), c.dst_pitch,
                             from.data() + first(c.src_pitch), c.src_pitch, c.rows, c.row_bytes,
                             wants_digest ? sum.From(2) : LeafSum(), stream_));
      ASSERT_EQ(to.Read(), expected);
      ASSERT_TRUE(to.GuardsHold());
      ASSERT_EQ(sum.Read(), wants_digest ? digest : 0);
    }
    const DeviceSum sum;
    ASSERT_QUEUED(AddLeavesOfRows(sum.From(2), from.data() + first(c.src_pitch), c.src_pitch,
                                  c.rows, c.row_bytes, stream_));
    ASSERT_EQ(sum.Read(), digest);
  }
}

// So many that each warp has several leaves.
TEST_F(StreamKernels, ManyLeaves) {
  const size_t size = size_t{2} * 16384 * 4096 + 4096 * 3 + 5;
  const SkewedBytes bytes = SkewedBytes::Mixed(size);
  const DeviceBytes from(bytes);
  const DeviceBytes to(size);
  ASSERT_QUEUED(CopyRows(to.data(), 0, from.data(), 0, 1, size, {}, stream_));
  const std::vector<uint8_t> got = to.Read();
  ASSERT_TRUE(std::equal(got.begin(), got.end(), bytes.data()));
  ASSERT_TRUE(to.GuardsHold());
}

constexpr Cast kCasts[] = {Cast::kF32ToBf16, Cast::kF32ToF16, Cast::kBf16ToF32, Cast::kF16ToF32,
                           Cast::kBf16ToF16};

TEST_F(StreamKernels, Casts) {
  for (const Cast cast : kCasts) {
    const size_t from_bytes = SizeBytes(SourceOf(cast)), to_bytes = SizeBytes(DestinationOf(cast));
    const SkewedBytes all = AllInputs(SourceOf(cast));
    for (const size_t count :
         {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{2047}, size_t{2048}, size_t{2049},
          size_t{10000}, all.size() / from_bytes}) {
      for (const size_t skew : {0, 1}) {
        std::vector<uint8_t> expected(count * to_bytes);
        const DeviceBytes from(all.data(), count * from_bytes, skew * from_bytes);
        const DeviceBytes to(count * to_bytes, skew * to_bytes);
        const DeviceSum sum;
        ASSERT_QUEUED(CastElements(cast, to.data(), from.data(), count, sum.From(1), stream_));
        scalar::CastElements(cast, expected.data(), all.data(), count);
        ASSERT_EQ(to.Read(), expected) << count << ", skew " << skew;
        ASSERT_TRUE(to.GuardsHold());
        ASSERT_EQ(sum.Read(), scalar::LeafSum(expected.data(), expected.size(), 1));
      }
    }
  }
}

TEST_F(StreamKernels, Transposes) {
  for (const size_t element_bytes : {1, 2, 4, 8}) {
    for (const size_t rows : {1, 63, 64, 65, 130}) {
      for (const size_t columns : {1, 31, 64, 100, 129}) {
        const size_t gap = element_bytes;
        const ptrdiff_t src_pitch = static_cast<ptrdiff_t>(rows * element_bytes + gap);
        const ptrdiff_t dst_pitch = static_cast<ptrdiff_t>(columns * element_bytes + 3 * gap);
        const SkewedBytes src =
            SkewedBytes::Mixed(columns * static_cast<size_t>(src_pitch), element_bytes);
        std::vector<uint8_t> expected(rows * static_cast<size_t>(dst_pitch), 0xa5);
        scalar::Transpose(expected.data(), dst_pitch, src.data(), src_pitch, rows, columns,
                          element_bytes);
        const DeviceBytes from(src);
        const DeviceBytes to(expected.size(), 3 * element_bytes);
        ASSERT_QUEUED(Transpose(to.data(), dst_pitch, from.data(), src_pitch, rows, columns,
                                element_bytes, stream_));
        ASSERT_EQ(to.Read(), expected) << element_bytes << ": " << rows << " x " << columns;
        ASSERT_TRUE(to.GuardsHold());
      }
    }
  }
}

TEST_F(StreamKernels, TransposesWithACast) {
  const size_t rows = 100, columns = 70;
  for (const Cast cast : kCasts) {
    const auto from_bytes = static_cast<ptrdiff_t>(SizeBytes(SourceOf(cast)));
    const auto to_bytes = static_cast<ptrdiff_t>(SizeBytes(DestinationOf(cast)));
    const SkewedBytes src = AllInputs(SourceOf(cast));
    std::vector<uint8_t> expected(rows * columns * to_bytes);
    // Large numbers, infinity and NaNs.
    const uint8_t* const begin =
        src.data() + (from_bytes == 4 ? 0x7f00 * 24 : src.size() / 2 - 5000 * 2);
    scalar::CastTranspose(cast, expected.data(), columns * to_bytes, begin, rows * from_bytes, rows,
                          columns);
    const DeviceBytes from(begin, rows * columns * from_bytes);
    const DeviceBytes to(expected.size());
    ASSERT_QUEUED(CastTranspose(cast, to.data(), columns * to_bytes, from.data(), rows * from_bytes,
                                rows, columns, stream_));
    EXPECT_EQ(to.Read(), expected);
    EXPECT_TRUE(to.GuardsHold());
  }
}

TEST_F(StreamKernels, TransposeRefusesWhatIsNotAligned) {
  const DeviceBytes memory(256);
  EXPECT_FALSE(Transpose(memory.data() + 1, 4, memory.data() + 64, 4, 2, 2, 2, stream_).ok());
  EXPECT_FALSE(Transpose(memory.data(), 4, memory.data() + 64, 5, 2, 2, 2, stream_).ok());
  EXPECT_FALSE(Transpose(memory.data(), 6, memory.data() + 64, 6, 2, 2, 3, stream_).ok());
}

}  // namespace
}  // namespace waybill::kernels::cuda
