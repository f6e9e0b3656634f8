// SPDX-License-Identifier: Apache-2.0

// Chunks of which only the changes travel, against chunks that are staged at their place.

#include "core/engine/chunk_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/planner.h"
#include "core/stage/stage_piece.h"
#include "core/tensor/manifest.h"
#include "kernels/copy.h"

namespace waybill {
namespace {

using ::testing::HasSubstr;

using Memory = std::vector<std::vector<std::byte>>;  // By region.

Memory MemoryOf(const Manifest& manifest) {
  Memory memory;
  for (uint32_t r = 0; r < manifest.region_count(); ++r)
    memory.emplace_back(manifest.region_bytes(r));
  return memory;
}

std::vector<absl::Span<std::byte>> SpansOf(Memory& memory) {
  std::vector<absl::Span<std::byte>> spans;
  for (auto& region : memory) spans.push_back(absl::MakeSpan(region));
  return spans;
}

void Add(Manifest& manifest, const std::string& name, Dtype dtype, std::vector<int64_t> shape,
         const Box& box) {
  const uint32_t tensor = manifest.AddTensor(name, shape, dtype);
  const auto bytes = static_cast<uint64_t>(box.element_count()) * SizeBytes(dtype);
  const uint32_t region = manifest.AddRegion(name, bytes);
  manifest.AddShard(tensor, Format{dtype}, box, {region, 0, {box.extent(1), 1}});
}

// A sender of whole tensors to a receiver of columns, so that the runs of a chunk lie apart at both
// ends; tensors of other element widths beside it; one that is cast on the way; and one of rows,
// whose chunks are sent as they lie.
class ChunkChangesTest : public testing::TestWithParam<double> {
 protected:
  static constexpr uint64_t kChunk = 64 << 10;

  ChunkChangesTest() {
    for (const auto& [name, from, to] : {std::tuple{"rows", Dtype::kBf16, Dtype::kBf16},
                                         {"cast", Dtype::kF32, Dtype::kBf16},
                                         {"wide", Dtype::kF32, Dtype::kF32},
                                         {"bytes", Dtype::kU8, Dtype::kU8}}) {
      Box columns = Box::Whole({300, 200});
      columns.Set(1, 50, 153);
      Add(sender_, name, from, {300, 200}, Box::Whole({300, 200}));
      Add(receiver_, name, to, {300, 200}, columns);
    }
    Box rows = Box::Whole({500, 200});
    Add(sender_, "whole rows", Dtype::kBf16, {500, 200}, rows);
    rows.Set(0, 100, 433);
    Add(receiver_, "whole rows", Dtype::kBf16, {500, 200}, rows);
    const auto plan = MakePlan({&sender_}, {&receiver_}, {});
    EXPECT_EQ(plan.status().message(), "");
    routes_ = plan->SenderRoutes(0);
    list_ = CutIntoChunks(routes_, kChunk);
    before_ = MemoryOf(sender_);
    newest_ = MemoryOf(sender_);
    base_ = MemoryOf(receiver_);
    expected_ = MemoryOf(receiver_);
    arrived_ = MemoryOf(receiver_);
    std::mt19937_64 random(7);
    for (size_t r = 0; r < before_.size(); ++r) {
      for (std::byte& byte : before_[r]) byte = static_cast<std::byte>(random() % 120);
      newest_[r] = before_[r];
      for (std::byte& byte : newest_[r]) {
        if (std::generate_canonical<double, 20>(random) < GetParam()) byte ^= std::byte{1};
      }
    }
    Place(before_, base_);
    Place(newest_, expected_);
  }

  std::byte* PlaceOf(uint32_t route, Memory& memory) const {
    return memory[routes_.destination_region(route)].data() + routes_.destination_offset(route);
  }
  const std::byte* SourceOf(uint32_t route, const Memory& memory) const {
    return memory[routes_.source_region(route)].data() + routes_.source_offset(route);
  }
  // Stages every route at its place.
  void Place(const Memory& from, Memory& to) {
    for (uint32_t r = 0; r < routes_.size(); ++r) {
      const RouteShape shape = routes_.shape(r);
      sums_[r] = StageInPlace(shape, SourceOf(r, from), 0, shape.size_bytes(), PlaceOf(r, to),
                              Digests::kOn);
    }
    kernels::StreamFence();
  }
  absl::Span<const Piece> PiecesOf(const Chunk& chunk) const { return list_.pieces_of(chunk); }

  // Returns the bytes that post the chunk.
  std::vector<std::byte> Post(const Chunk& chunk) {
    const auto spans = [](Memory& memory) {
      std::vector<MemorySpan> out;
      for (auto& region : memory) {
        out.push_back({MemoryKind::kHost, region.data(), region.size()});
      }
      return out;
    };
    std::vector<std::byte> slot(chunk.size_bytes);
    slot.resize(StageChanges(routes_, PiecesOf(chunk), spans(newest_), spans(before_),
                             absl::MakeSpan(slot),
                             [this](uint32_t route, uint64_t sum) { staged_[route] += sum; }));
    return slot;
  }
  // Writes the bytes that post a chunk to its place, as the network does.
  void Write(const Chunk& chunk, absl::Span<const std::byte> posted) {
    std::vector<ChunkWrite> writes;
    AppendWrites(routes_, list_, chunk, [](uint32_t) { return false; }, writes);
    for (const ChunkWrite& write : writes) {
      const auto now = posted.subspan(0, write.size_bytes);
      if (now.empty()) return;
      std::memcpy(arrived_[write.destination_region].data() + write.destination_offset_bytes,
                  now.data(), now.size());
      posted.remove_prefix(now.size());
    }
  }
  absl::Status Take(const Chunk& chunk) {
    return TakeChanges(routes_, PiecesOf(chunk), chunk.size_bytes, SpansOf(base_),
                       SpansOf(arrived_),
                       [this](uint32_t route, uint64_t sum) { taken_[route] += sum; });
  }

  Manifest sender_, receiver_;
  RouteTable routes_;
  ChunkList list_;
  Memory before_, newest_, base_, expected_, arrived_;
  std::map<uint32_t, uint64_t> sums_, staged_, taken_;
};

TEST_P(ChunkChangesTest, AChunkIsCompletedFromWhatChanged) {
  ASSERT_GT(list_.chunks.size(), 2u);
  uint64_t posted_bytes = 0, bytes = 0;
  for (const Chunk& chunk : list_.chunks) {
    const std::vector<std::byte> posted = Post(chunk);
    ASSERT_LT(posted.size(), chunk.size_bytes);
    Write(chunk, posted);
    EXPECT_EQ(Take(chunk).message(), "");
    posted_bytes += posted.size();
    bytes += chunk.size_bytes;
  }
  EXPECT_EQ(arrived_, expected_);
  EXPECT_EQ(staged_, sums_);
  EXPECT_EQ(taken_, sums_);
  if (GetParam() == 0) {
    EXPECT_EQ(posted_bytes, 5 * list_.chunks.size());
  } else if (GetParam() == 0.01) {
    EXPECT_LT(posted_bytes * 20, bytes);
  }
}

TEST_P(ChunkChangesTest, WhatIsNoEncodingIsRefused) {
  for (const Chunk& chunk : list_.chunks) {
    std::vector<std::byte> posted = Post(chunk);
    for (const uint32_t size : {0u, static_cast<uint32_t>(posted.size()), ~uint32_t{0}}) {
      std::memcpy(posted.data(), &size, sizeof(size));
      Write(chunk, posted);
      const absl::Status status = Take(chunk);
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("what changed in a chunk: "));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Densities, ChunkChangesTest, testing::Values(0, 0.01, 0.2));

class AllChanges : public ChunkChangesTest {};

TEST_P(AllChanges, AChunkTravelsWholeWhereThatIsShorter) {
  std::mt19937_64 random(8);
  for (auto& region : newest_) {
    for (std::byte& byte : region) byte = static_cast<std::byte>(random());
  }
  for (const Chunk& chunk : list_.chunks) EXPECT_EQ(Post(chunk).size(), chunk.size_bytes);
}

INSTANTIATE_TEST_SUITE_P(Densities, AllChanges, testing::Values(1));

}  // namespace
}  // namespace waybill
