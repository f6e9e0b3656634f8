// SPDX-License-Identifier: Apache-2.0

#include "core/plan/chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace waybill {
namespace {

// A route of bytes with those axes.
void AddRoute(RouteTable& table, uint32_t receiver, uint64_t destination, std::vector<Axis> axes,
              uint32_t element_bytes = 2) {
  table.Add({.receiver = receiver,
             .destination_offset_bytes = destination,
             .shape = {.source_element_bytes = element_bytes,
                       .destination_element_bytes = element_bytes,
                       .axes = axes}});
}

std::vector<ChunkWrite> WritesOf(const RouteTable& table, const ChunkList& list) {
  std::vector<ChunkWrite> writes;
  for (const Chunk& chunk : list.chunks) {
    AppendWrites(table, list, chunk, [](uint32_t) { return false; }, writes);
  }
  return writes;
}

TEST(Chunks, AreCutAtWholeLeavesOnly) {
  RouteTable table;
  AddRoute(table, 0, 0, {{5000, 2, 2}});  // 10000 bytes.
  AddRoute(table, 0, 10000, {{3500, 2, 2}});
  const ChunkList list = CutIntoChunks(table, 8192);
  ASSERT_EQ(list.chunks.size(), 3u);
  for (const Piece& piece : list.pieces) {
    EXPECT_EQ(piece.begin % kCutBytes, 0u);
    EXPECT_TRUE(piece.end % kCutBytes == 0 || piece.end == table.shape(piece.route).size_bytes());
  }
  EXPECT_EQ(list.chunks[0].size_bytes, 8192u);
  EXPECT_EQ(list.chunks[1].size_bytes, 10000 - 8192 + 4096u);  // As much as fits, whole leaves.
  EXPECT_EQ(list.chunks[2].size_bytes, 7000 - 4096u);
}

// Returns where the pieces of a route of F32 begin that is transposed from `columns` rows.
std::vector<uint64_t> CutsOfTransposed(int64_t rows, int64_t columns, uint64_t chunk_bytes) {
  RouteTable table;
  AddRoute(table, 0, 0, {{100, 4, 4}}, 4);  // Takes a part of the first chunk.
  AddRoute(table, 0, 400, {{rows, 4, columns * 4}, {columns, rows * 4, 4}}, 4);
  std::vector<uint64_t> cuts;
  uint64_t end = 0;
  const ChunkList list = CutIntoChunks(table, chunk_bytes);
  for (const Chunk& chunk : list.chunks) EXPECT_LE(chunk.size_bytes, chunk_bytes);
  for (const Piece& piece : list.pieces) {
    if (piece.route == 0) continue;
    EXPECT_EQ(piece.begin, end);
    EXPECT_EQ(piece.begin % kCutBytes, 0u);
    end = piece.end;
    cuts.push_back(piece.begin);
  }
  EXPECT_EQ(end, table.shape(1).size_bytes());
  return cuts;
}

TEST(Chunks, TransposedRoutesAreCutBetweenTilesOfRows) {
  for (const uint64_t cut : CutsOfTransposed(768, 1536, 1 << 20)) {
    EXPECT_EQ(cut % (16 * 1536 * 4), 0u) << cut;
  }
}

TEST(Chunks, TransposedRoutesOfLongRowsAreCutBetweenRows) {
  const std::vector<uint64_t> cuts = CutsOfTransposed(64, 5120, 1 << 20);
  EXPECT_TRUE(std::any_of(cuts.begin(), cuts.end(),
                          [](uint64_t cut) { return cut % (16 * 5120 * 4) != 0; }));
  for (const uint64_t cut : cuts) EXPECT_EQ(cut % (5120 * 4), 0u) << cut;
}

TEST(Chunks, TransposedRoutesThatFitInAChunkAreNotCut) {
  EXPECT_EQ(CutsOfTransposed(512, 512, 1 << 20), std::vector<uint64_t>{0});
}

TEST(Chunks, TransposedRoutesAreCutWithinRowsThatAreTooLong) {
  EXPECT_EQ(CutsOfTransposed(3, 4096, 8192),
            (std::vector<uint64_t>{0, 8192, 16384, 24576, 32768, 40960}));
}

TEST(Chunks, GoToOneReceiverEach) {
  RouteTable table;
  AddRoute(table, 1, 0, {{8, 2, 2}});
  AddRoute(table, 0, 0, {{8, 2, 2}});
  const ChunkList list = CutIntoChunks(table, 8192);
  ASSERT_EQ(list.chunks.size(), 2u);
  EXPECT_EQ(list.chunks[0].receiver, 1u);
  EXPECT_EQ(list.chunks[1].receiver, 0u);
}

TEST(Chunks, NeighbouringRoutesAreOneWrite) {
  RouteTable table;
  AddRoute(table, 0, 100, {{8, 2, 2}});
  AddRoute(table, 0, 116, {{8, 2, 2}});
  AddRoute(table, 0, 200, {{8, 2, 2}});
  const auto writes = WritesOf(table, CutIntoChunks(table, 8192));
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_EQ(writes[0].size_bytes, 32u);
  EXPECT_EQ(writes[1].source_offset_bytes, 32u);
  EXPECT_EQ(writes[1].destination_offset_bytes, 200u);
}

TEST(Chunks, AStridedDestinationIsAWriteForEachRow) {
  RouteTable table;
  AddRoute(table, 0, 0, {{10, 64, 128}, {16, 2, 2}});
  EXPECT_EQ(WritesOf(table, CutIntoChunks(table, 8192)).size(), 10u);
}

TEST(Chunks, WhatIsDirectIsWrittenFromItsRegionAndWhatIsStagedFromTheSlot) {
  RouteTable table;
  AddRoute(table, 0, 0, {{8192, 2, 2}});  // 16 KiB: as it lies.
  table.Add({.source_region = 3,
             .source_offset_bytes = 100,
             .destination_offset_bytes = 16384,
             .shape = {.source_element_bytes = 2,
                       .destination_element_bytes = 2,
                       .axes = std::vector<Axis>{{8, 2, 2}}}});  // Too short.
  AddRoute(table, 0, 16400, {{2, 40000, 20000}, {8192, 2, 2}});
  const ChunkList list = CutIntoChunks(table, 1 << 20);
  std::vector<ChunkWrite> writes;
  AppendWrites(
      table, list, list.chunks.at(0), [&](uint32_t r) { return IsDirect(table, r); }, writes);
  ASSERT_EQ(writes.size(), 4u);
  EXPECT_EQ(writes[0].source_region, 0u);
  EXPECT_EQ(writes[1].source_region, ChunkWrite::kSlot);
  EXPECT_EQ(writes[1].source_offset_bytes, 0u);
  EXPECT_EQ(writes[1].destination_offset_bytes, 16384u);
  EXPECT_EQ(writes[3].source_offset_bytes, 40000u);
  EXPECT_EQ(writes[3].destination_offset_bytes, 16400u + 20000);
  EXPECT_EQ(writes[3].size_bytes, 16384u);
}

TEST(Chunks, WhatChangesOnTheWayIsNotDirect) {
  RouteTable table;
  AddRoute(table, 0, 0, {{8192, 2, 2}});
  AddRoute(table, 0, 0, {{8191, 2, 2}});                    // Shorter runs.
  AddRoute(table, 0, 0, {{64, 2, 16384}, {8192, 128, 2}});  // Transposed.
  const std::vector<Axis> axes = {{8192, 4, 2}};
  table.Add({.shape = {.transform = Transform::kF32ToBf16,
                       .source_element_bytes = 4,
                       .destination_element_bytes = 2,
                       .axes = axes}});
  const std::vector<Axis> plain = {{8192, 4, 4}};
  table.Add({.scale_table = 0,
             .shape = {.source_element_bytes = 4, .destination_element_bytes = 4, .axes = plain}});
  EXPECT_TRUE(IsDirect(table, 0));
  for (uint32_t r = 1; r < table.size(); ++r) EXPECT_FALSE(IsDirect(table, r)) << r;
  EXPECT_TRUE(IsDirect(table, 1, 1));
}

// Never a write for each element: a transposed source lands in whole runs.
TEST(Chunks, ATransposedSourceIsOneWrite) {
  RouteTable table;
  AddRoute(table, 0, 0, {{32, 2, 64}, {32, 64, 2}});
  ASSERT_TRUE(table.shape(0).transposed());
  EXPECT_EQ(WritesOf(table, CutIntoChunks(table, 8192)).size(), 1u);
}

TEST(Chunks, ARangeInTheMiddleOfRunsIsFound) {
  RouteTable table;
  AddRoute(table, 0, 0, {{3, 1, 1000}, {4, 1, 100}, {10, 2, 2}});
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  ForEachDestinationRun(table.shape(0), 30, 110,
                        [&](uint64_t offset, uint64_t size) { runs.emplace_back(offset, size); });
  EXPECT_EQ(runs, (std::vector<std::pair<uint64_t, uint64_t>>{
                      {110, 10}, {200, 20}, {300, 20}, {1000, 20}, {1100, 10}}));
}

}  // namespace
}  // namespace waybill
