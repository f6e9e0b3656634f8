// SPDX-License-Identifier: Apache-2.0

#include "core/engine/staging_slots.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/loopback/loopback.h"

namespace waybill {
namespace {

constexpr uint64_t kSlotBytes = 4096;

// The number of threads that stage. With 0, Begin() writes the slots before it returns.
class StagingSlotsTest : public testing::TestWithParam<uint32_t> {
 protected:
  StagingSlotsTest()
      : pool_(GetParam()),
        slots_(fabric_.get(), *StagingRing::Create(fabric_.get(), 3 * kSlotBytes, kSlotBytes),
               &pool_, [this](absl::Span<const ChunkInSlot> chunks) {
                 gate_.wait(false);
                 ++calls_;
                 for (const ChunkInSlot& chunk : chunks) {
                   *slots_.ring().BytesOf(chunk.slot) = static_cast<std::byte>(chunk.chunk);
                 }
               }) {
    Open();
  }
  ~StagingSlotsTest() override {
    Open();
    slots_.Cancel();
  }

  void Stage(uint32_t slot, uint32_t chunk) {
    slots_.Stage(slot, chunk);
    EXPECT_TRUE(slots_.Begin());
    EXPECT_FALSE(slots_.Begin());
  }
  // Whether threads may write.
  void Open() {
    gate_ = true;
    gate_.notify_all();
  }
  void Shut() { gate_ = false; }

  // Waits until `count` more slots are written.
  std::multiset<uint32_t> Written(size_t count) {
    std::multiset<uint32_t> written;
    while (written.size() < count) {
      slots_.ForEachWritten([&](uint32_t slot) { written.insert(slot); });
      if (written.size() < count) fabric_->Wait(absl::InfiniteFuture());
    }
    return written;
  }
  uint8_t At(uint32_t slot) { return static_cast<uint8_t>(*slots_.ring().BytesOf(slot)); }

  std::atomic<bool> gate_ = false;
  std::atomic<int> calls_ = 0;
  LoopbackNetwork network_;
  std::unique_ptr<Fabric> fabric_ = network_.Join("trainer 0");
  WorkPool pool_;
  StagingSlots slots_;
};

TEST_P(StagingSlotsTest, EachWrittenSlotIsVisitedOnce) {
  Stage(0, 10);
  Stage(2, 12);
  EXPECT_EQ(Written(2), (std::multiset<uint32_t>{0, 2}));
  EXPECT_EQ(At(0), 10);
  EXPECT_EQ(At(2), 12);
  slots_.ForEachWritten([](uint32_t) { FAIL() << "visited twice"; });
}

TEST_P(StagingSlotsTest, AThreadWritesSeveralChunksAtATime) {
  slots_.set_at_once(2);
  slots_.Stage(2, 12);
  slots_.Stage(0, 10);
  slots_.Stage(1, 11);
  EXPECT_EQ(calls_, 0);
  EXPECT_TRUE(slots_.Begin());
  EXPECT_EQ(Written(3), (std::multiset<uint32_t>{0, 1, 2}));
  EXPECT_EQ(calls_, 2);
  for (uint32_t slot = 0; slot < 3; ++slot) EXPECT_EQ(At(slot), 10 + slot);
}

TEST_P(StagingSlotsTest, ASlotCanBeWrittenAgain) {
  for (uint32_t chunk = 0; chunk < 50; ++chunk) {
    Stage(1, chunk);
    EXPECT_EQ(Written(1), (std::multiset<uint32_t>{1}));
    EXPECT_EQ(At(1), chunk);
  }
}

TEST_P(StagingSlotsTest, AfterACancelNothingIsLeftToVisit) {
  Stage(0, 1);
  Stage(1, 2);
  slots_.Cancel();
  slots_.ForEachWritten([](uint32_t) { FAIL() << "visited after Cancel()"; });
  Stage(1, 3);
  EXPECT_EQ(Written(1), (std::multiset<uint32_t>{1}));
  EXPECT_EQ(At(1), 3);
}

TEST_P(StagingSlotsTest, ACancelWaitsForTheThreadThatWrites) {
  if (GetParam() == 0) GTEST_SKIP() << "nobody writes meanwhile";
  Shut();
  Stage(0, 7);
  std::thread opener([this] { Open(); });
  slots_.Cancel();  // Drops the slot, or waits until it is written.
  opener.join();
  const uint8_t written = At(0);
  EXPECT_TRUE(written == 0 || written == 7);
  slots_.ForEachWritten([](uint32_t) { FAIL() << "visited after Cancel()"; });
}

INSTANTIATE_TEST_SUITE_P(Threads, StagingSlotsTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace waybill
