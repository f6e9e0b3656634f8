// SPDX-License-Identifier: Apache-2.0

#include "core/engine/shown_state.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"

namespace waybill {
namespace {

TEST(ShownState, WritingBeginsOnlyWhileNobodyReadsTheBuffer) {
  ShownState state({{}, {}}, [] {});
  state.Show(0, 7);
  std::optional<Snapshot> snapshot = *state.Take("reader");
  EXPECT_FALSE(state.BeginWriting(0));
  EXPECT_FALSE(state.dirty());
  EXPECT_TRUE(state.BeginWriting(1));
  state.SetDirty(false);
  snapshot.reset();
  EXPECT_TRUE(state.BeginWriting(0));
  EXPECT_EQ(state.Take("reader").status().code(), absl::StatusCode::kUnavailable);
}

TEST(ShownState, NoReaderOvertakesAnUpdateThatWaits) {
  ShownState state({{}, {}}, [] {});
  state.Show(0, 7);
  std::optional<Snapshot> earlier = *state.Take("earlier");
  ASSERT_FALSE(state.BeginWriting(0));
  EXPECT_EQ(state.Take("later").status(),
            absl::UnavailableError("take a snapshot: an update waits to write the memory, for "
                                   "earlier snapshots to end"));
  state.StopWaiting();
  EXPECT_TRUE(state.Take("later").ok());
  ASSERT_FALSE(state.BeginWriting(0));
  earlier.reset();
  ASSERT_TRUE(state.BeginWriting(0));
  state.Show(0, 8);
  EXPECT_TRUE(state.Take("later").ok());
}

// One thread writes a number everywhere whenever it may; the other one reads within snapshots.
TEST(ShownState, AReaderNeverMeetsAWriter) {
  constexpr uint64_t kWrites = 20'000;
  ShownState state({{}}, [] {});
  state.Show(0, 1);
  std::array<std::atomic<uint64_t>, 8> memory{};
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (uint64_t version = 2; version < kWrites;) {
      if (!state.BeginWriting(0)) continue;
      for (auto& word : memory) word.store(version, std::memory_order_relaxed);
      state.Show(0, version++);
    }
    over = true;
  });
  uint64_t torn = 0;
  while (!over) {
    const absl::StatusOr<Snapshot> snapshot = state.Take("reader");
    if (!snapshot.ok()) continue;
    const uint64_t first = memory[0].load(std::memory_order_relaxed);
    for (const auto& word : memory) torn += word.load(std::memory_order_relaxed) != first ? 1 : 0;
  }
  writer.join();
  EXPECT_EQ(torn, 0u);
}

}  // namespace
}  // namespace waybill
