// SPDX-License-Identifier: Apache-2.0

#include "kernels/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/every_target.h"
#include "kernels/scalar.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

struct RowsCase {
  const char* name;
  size_t rows;
  size_t row_bytes;
  ptrdiff_t dst_pitch;
  ptrdiff_t src_pitch;
};

const RowsCase kRowsCases[] = {
    // name, rows, row_bytes, dst_pitch, src_pitch
    {"nothing", 0, 64, 64, 64},
    {"empty_rows", 5, 0, 64, 64},
    {"one_row", 1, 5000, 0, 0},
    {"one_run", 9, 1000, 1000, 1000},
    {"packs", 33, 256, 256, 1024},
    {"packs_odd_rows", 71, 333, 333, 1001},
    {"packs_rows_longer_than_a_leaf", 5, 9999, 9999, 12000},
    {"packs_rows_of_a_leaf", 7, 4096, 4096, 16384},
    {"packs_long_rows", 3, 70000, 70016, 80000},
    {"packs_many_short_rows", 300, 128, 128, 640},
    {"unpacks", 17, 2048, 4096, 2048},
    {"both_strided", 12, 700, 900, 800},
    {"upside_down", 20, 512, 512, -512},
};

class RowsTest : public testing::TestWithParam<RowsCase> {};

// The place of the first row in a buffer that just holds the block.
size_t FirstRow(const RowsCase& c, ptrdiff_t pitch) {
  return pitch < 0 && c.rows > 0 ? (c.rows - 1) * static_cast<size_t>(-pitch) : 0;
}

size_t Extent(const RowsCase& c, ptrdiff_t pitch) {
  return c.rows == 0 ? 0 : (c.rows - 1) * static_cast<size_t>(std::abs(pitch)) + c.row_bytes;
}

TEST_P(RowsTest, CopiesTheBlockAndDigestsItsRowsInOrder) {
  const RowsCase& c = GetParam();
  const SkewedBytes src = SkewedBytes::Mixed(Extent(c, c.src_pitch), 4);
  const uint8_t* first = src.data() + FirstRow(c, c.src_pitch);
  SkewedBytes expected(Extent(c, c.dst_pitch));
  std::vector<uint8_t> packed;
  for (size_t r = 0; r < c.rows; ++r) {
    const uint8_t* row = first + static_cast<ptrdiff_t>(r) * c.src_pitch;
    packed.insert(packed.end(), row, row + c.row_bytes);
    std::copy_n(row, c.row_bytes, expected.data() + static_cast<ptrdiff_t>(r) * c.dst_pitch);
  }
  const uint64_t sum = scalar::LeafSum(packed.data(), packed.size(), 0);

  OnEveryTarget([&] {
    DigestStream absorbed;
    AbsorbRows(first, c.src_pitch, c.rows, c.row_bytes, &absorbed);
    ASSERT_EQ(absorbed.sum(), sum);
    for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
      for (const size_t skew : {0, 2}) {
        for (const bool with_digest : {false, true}) {
          SkewedBytes dst(expected.size(), skew);
          DigestStream stream;
          CopyRows(dst.data(), c.dst_pitch, first, c.src_pitch, c.rows, c.row_bytes, stores,
                   with_digest ? &stream : nullptr);
          StreamFence();
          ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data()));
          ASSERT_TRUE(dst.GuardsHold());
          ASSERT_EQ(stream.sum(), with_digest ? sum : 0);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Rows, RowsTest, testing::ValuesIn(kRowsCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill::kernels
