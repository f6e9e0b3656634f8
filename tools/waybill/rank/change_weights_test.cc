// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/rank/change_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"
#include "core/tensor/format.h"
#include "core/tensor/manifest.h"
#include "tools/check/change.h"

namespace waybill {
namespace {

// The bits in `version` of an element that was 0 in the checkpoint.
template <typename Element>
Element Expected(uint64_t version, const char* tensor, uint64_t element) {
  return static_cast<Element>(check::Change(check::KeyOf({version}, tensor), element) &
                              check::BitsThatChange(sizeof(Element)));
}

template <typename Element>
Element At(const std::vector<std::byte>& memory, size_t offset_bytes, size_t element) {
  Element value;
  std::memcpy(&value, memory.data() + offset_bytes + element * sizeof(Element), sizeof(value));
  return value;
}

struct Shard {
  Manifest manifest;
  std::vector<std::byte> memory;
};

// One shard, row-major and dense, with 8 bytes around it that nothing may touch.
Shard Hold(std::vector<int64_t> shape, const Box& box, Dtype dtype) {
  Shard held;
  std::vector<int64_t> strides(shape.size(), 1);
  for (int d = box.dimensions() - 2; d >= 0; --d) {
    strides[d] = strides[d + 1] * box.extent(d + 1);
  }
  const Format format{dtype};
  held.memory.resize(16 + box.element_count() * ElementBytes(format));
  held.manifest.AddRegion("weights", held.memory.size());
  const uint32_t tensor = held.manifest.AddTensor("w", shape, dtype);
  held.manifest.AddShard(tensor, format, box, {0, 8, strides});
  return held;
}

TEST(ChangeWeights, NumbersOfAColumnShardAreThoseOfTheWholeTensor) {
  // Columns [4, 6) of [3, 8]: the second half of a row-parallel weight on four ranks.
  Shard held = Hold({3, 8}, Box({0, 4}, {3, 6}), Dtype::kBf16);
  ChangeWeights(held.manifest, absl::MakeSpan(held.memory), {0}, {7});
  const uint64_t numbers[] = {4, 5, 12, 13, 20, 21};
  for (size_t i = 0; i < std::size(numbers); ++i) {
    EXPECT_EQ(At<uint16_t>(held.memory, 8, i), Expected<uint16_t>(7, "w", numbers[i])) << i;
  }
  EXPECT_EQ(At<uint64_t>(held.memory, 0, 0), 0u);
  EXPECT_EQ(At<uint64_t>(held.memory, held.memory.size() - 8, 0), 0u);
}

TEST(ChangeWeights, NumbersInThreeDimensions) {
  Shard held = Hold({2, 4, 3}, Box({0, 1, 1}, {2, 3, 3}), Dtype::kF32);
  ChangeWeights(held.manifest, absl::MakeSpan(held.memory), {0}, {2});
  const uint64_t numbers[] = {4, 5, 7, 8, 16, 17, 19, 20};
  for (size_t i = 0; i < std::size(numbers); ++i) {
    EXPECT_EQ(At<uint32_t>(held.memory, 8, i), Expected<uint32_t>(2, "w", numbers[i])) << i;
  }
}

TEST(ChangeWeights, FromVersionToVersionAndBack) {
  Shard held = Hold({4, 2}, Box({2, 0}, {4, 2}), Dtype::kBf16);
  const std::vector<std::byte> checkpoint = held.memory;
  ChangeWeights(held.manifest, absl::MakeSpan(held.memory), {0}, {1});
  ChangeWeights(held.manifest, absl::MakeSpan(held.memory), {1}, {5});
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(At<uint16_t>(held.memory, 8, i), Expected<uint16_t>(5, "w", 4 + i)) << i;
  }
  ChangeWeights(held.manifest, absl::MakeSpan(held.memory), {5}, {0});
  EXPECT_EQ(held.memory, checkpoint);
}

TEST(ChangeWeights, AScalarChangesAndAnEmptyShardDoesNot) {
  Shard scalar = Hold({}, Box({}, {}), Dtype::kF32);
  ChangeWeights(scalar.manifest, absl::MakeSpan(scalar.memory), {0}, {3});
  EXPECT_EQ(At<uint32_t>(scalar.memory, 8, 0), Expected<uint32_t>(3, "w", 0));
  Shard empty = Hold({3, 2}, Box({3, 0}, {3, 2}), Dtype::kBf16);
  const std::vector<std::byte> before = empty.memory;
  ChangeWeights(empty.manifest, absl::MakeSpan(empty.memory), {0}, {3});
  EXPECT_EQ(empty.memory, before);
}

}  // namespace
}  // namespace waybill
