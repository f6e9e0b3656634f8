// SPDX-License-Identifier: Apache-2.0

#include "core/engine/shared_chunks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/loopback/loopback.h"

namespace waybill {
namespace {

constexpr uint64_t kChunkBytes = 100;

// Two senders, each with a plan of three chunks. The number of threads that pack; with 0,
// BeginPacking() packs before it returns.
class SharedChunksTest : public testing::TestWithParam<uint32_t> {
 protected:
  // One sender, and the chunks that it has packed.
  struct Sender {
    explicit Sender(SharedChunksTest* test)
        : shared(test->shared_),
          sharing(test->fabric_.get(), &test->shared_, &test->pool_,
                  [test, this](uint32_t chunk, Packed, absl::Span<std::byte> memory,
                               PackedChunk& result) {
                    memory[0] = static_cast<std::byte>(chunk + 1);
                    result.sums[0] = chunk + 1;
                    ++packed;
                  }) {
      sharing.SetPlan(3);
    }
    void Share(uint32_t chunk, const std::string& content) {
      sharing.Share(chunk, content, kChunkBytes, 1);
    }
    void Begin(uint64_t image) {
      shared.BeginImage(image);
      sharing.Begin();
      ready.clear();
    }
    bool Take(uint32_t chunk) { return sharing.Take(chunk, Packed::kWhole); }
    void Step() {
      sharing.ForEachPacked([this](uint32_t chunk, bool own) {
        ready.push_back(chunk);
        EXPECT_EQ(sharing.of(chunk).result.sums[0],
                  static_cast<uint64_t>(sharing.of(chunk).memory.data[0]));
        packed_by_others += own ? 0 : 1;
      });
      sharing.BeginPacking();
    }

    SharedChunks& shared;
    std::atomic<uint32_t> packed = 0;
    std::vector<uint32_t> ready;
    uint32_t packed_by_others = 0;
    ChunkSharing sharing;
  };

  SharedChunksTest() : pool_(GetParam()), shared_(fabric_.get()) {}

  // Both want chunks 0 and 1; chunk 2 of each is its own.
  void ShareTwo() {
    for (Sender* sender : {&a_, &b_}) {
      sender->Share(0, "x");
      sender->Share(1, "y");
    }
    a_.Share(2, "of a");
    b_.Share(2, "of b");
    ASSERT_EQ(shared_.Reserve(), absl::OkStatus());
  }
  // Steps both until the sender has so many chunks.
  void Await(Sender& sender, size_t count) {
    while (sender.ready.size() < count) {
      a_.Step();
      b_.Step();
      if (sender.ready.size() < count) fabric_->Wait(absl::InfiniteFuture());
    }
  }

  LoopbackNetwork network_;
  std::unique_ptr<Fabric> fabric_ = network_.Join("trainer 0");
  WorkPool pool_;
  SharedChunks shared_;
  Sender a_{this};
  Sender b_{this};
};

TEST_P(SharedChunksTest, WhatTwoWantIsPackedOnce) {
  ShareTwo();
  for (Sender* sender : {&a_, &b_}) {
    sender->Begin(1);
    EXPECT_TRUE(sender->Take(0));
    EXPECT_TRUE(sender->Take(1));
  }
  Await(a_, 2);
  Await(b_, 2);
  EXPECT_EQ(a_.packed, 2u);
  EXPECT_EQ(b_.packed, 0u);
  EXPECT_EQ(a_.packed_by_others, 0u);
  EXPECT_EQ(b_.packed_by_others, 2u);
}

TEST_P(SharedChunksTest, WhatOneWantsHasNoMemory) {
  ShareTwo();
  a_.Begin(1);
  EXPECT_FALSE(a_.Take(2));
  EXPECT_TRUE(a_.Take(0));
}

TEST_P(SharedChunksTest, WhatOneSenderGivesUpIsPackedByTheOther) {
  ShareTwo();
  for (Sender* sender : {&a_, &b_}) {
    sender->Begin(1);
    EXPECT_TRUE(sender->Take(0));
    EXPECT_TRUE(sender->Take(1));
  }
  a_.sharing.End();
  Await(b_, 2);
  EXPECT_EQ(a_.packed, 0u);
  EXPECT_EQ(b_.packed, 2u);
}

TEST_P(SharedChunksTest, WhatWasPackedIsTakenUntilTheNextImage) {
  ShareTwo();
  for (const uint64_t image : {1, 2}) {
    for (Sender* sender : {&a_, &b_}) {
      sender->Begin(image);
      EXPECT_TRUE(sender->Take(0));
      Await(*sender, 1);
      sender->sharing.End();
    }
    EXPECT_EQ(a_.packed, image);
    EXPECT_EQ(b_.packed, 0u);
  }
}

// Otherwise a receiver without a base would be sent what changed.
TEST_P(SharedChunksTest, AChunkIsPackedInOneWayWhileAnybodyWaitsForIt) {
  ShareTwo();
  for (Sender* sender : {&a_, &b_}) {
    sender->Begin(1);
    EXPECT_TRUE(sender->sharing.Take(0, Packed::kChanges));
  }
  EXPECT_TRUE(a_.sharing.Take(1, Packed::kChanges));
  a_.sharing.End();
  a_.Begin(1);
  EXPECT_FALSE(a_.Take(0));  // The other sender waits for it.
  EXPECT_TRUE(a_.Take(1));
  Await(b_, 1);
  b_.sharing.End();
  EXPECT_FALSE(b_.Take(0));  // It is packed.
}

TEST_P(SharedChunksTest, MemoryStaysUntilItsLastUserGoes) {
  ShareTwo();
  a_.sharing.SetPlan(3);
  b_.Begin(1);
  EXPECT_TRUE(b_.Take(0));
  b_.sharing.SetPlan(3);
  b_.Share(0, "x");
  ASSERT_EQ(shared_.Reserve(), absl::OkStatus());
  b_.Begin(1);
  EXPECT_FALSE(b_.Take(0));
}

INSTANTIATE_TEST_SUITE_P(Threads, SharedChunksTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace waybill
