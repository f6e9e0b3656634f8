// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/send_queue.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "testing/fake_verbs/fake_host.h"
#include "testing/fake_verbs/wire.h"

namespace waybill::verbs {
namespace {

constexpr uint32_t kLane = 0x0A0B0C0D;

struct Request {
  ibv_send_wr request;
  ibv_sge piece;
};

// Only takes what is posted, up to what the test lets it take.
class Recorder final : public fake_verbs::FakeHost {
 public:
  using FakeHost::FakeHost;

  int PostSend(ibv_qp*, ibv_send_wr* chain, ibv_send_wr** bad) override {
    ++calls;
    std::vector<Request> taken;
    for (ibv_send_wr* request = chain; request != nullptr; request = request->next) {
      if (room && *room == 0) {
        if (names_bad) *bad = request;
        if (!taken.empty()) chains.push_back(taken);
        if (once) room.reset();
        return error;
      }
      if (room) --*room;
      taken.push_back({*request, request->num_sge > 0 ? *request->sg_list : ibv_sge{}});
    }
    chains.push_back(taken);
    return 0;
  }

  std::vector<Request> all() const {
    std::vector<Request> all;
    for (const auto& chain : chains) all.insert(all.end(), chain.begin(), chain.end());
    return all;
  }
  std::vector<size_t> chain_sizes() const {
    std::vector<size_t> sizes;
    for (const auto& chain : chains) sizes.push_back(chain.size());
    return sizes;
  }

  uint32_t calls = 0;
  std::optional<uint64_t> room;
  bool once = false;  // Then there is room again.
  int error = ENOMEM;
  bool names_bad = true;
  std::vector<std::vector<Request>> chains;
};

class SendQueueTest : public testing::Test {
 protected:
  void Make(const SendQueueLimits& limits, uint64_t first = 0) {
    queue.emplace(kLane, limits, &counts, first);
  }
  static std::vector<RemoteWrite> Writes(size_t count, uint64_t size) {
    std::vector<RemoteWrite> writes;
    for (size_t i = 0; i < count; ++i) {
      writes.push_back({.local_address = 0x1000 + i * size,
                        .remote_address = 0x900000 + i * size,
                        .size_bytes = size,
                        .local_key = 11,
                        .remote_key = 22});
    }
    return writes;
  }
  absl::Status Pump(bool flush = true) { return queue->Pump(verbs, nullptr, flush); }
  std::vector<uint64_t> Retire(uint64_t wr_id) {
    std::vector<uint64_t> tokens;
    queue->Retire(wr_id, tokens);
    return tokens;
  }
  static uint64_t Number(uint32_t number) { return uint64_t{kLane} << 32 | number; }

  fake_verbs::Wire wire{{}};
  Recorder verbs{&wire};
  SendCounts counts;
  std::optional<SendQueue> queue;
};

TEST_F(SendQueueTest, SixteenWritesOfAPostAreOneDoorbell) {
  Make({});
  queue->Append(Writes(16, 1000), 5, 1);
  ASSERT_TRUE(Pump().ok());
  EXPECT_EQ(verbs.calls, 1u);
  EXPECT_EQ(verbs.chain_sizes(), std::vector<size_t>{16});
  EXPECT_EQ(counts.doorbells, 1u);
  EXPECT_EQ(counts.requests, 16u);
}

TEST_F(SendQueueTest, ARequestIsItsWrite) {
  Make({});
  queue->Append(Writes(2, 1000), 0xABCD, 1);
  ASSERT_TRUE(Pump().ok());
  const std::vector<Request> all = verbs.all();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].request.opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(all[0].request.send_flags, 0u);
  EXPECT_EQ(all[1].request.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(all[1].request.imm_data, htonl(0xABCD));
  EXPECT_EQ(all[1].request.send_flags, unsigned{IBV_SEND_SIGNALED});
  EXPECT_EQ(all[1].request.wr.rdma.remote_addr, 0x900000u + 1000);
  EXPECT_EQ(all[1].request.wr.rdma.rkey, 22u);
  EXPECT_EQ(all[1].piece.addr, 0x1000u + 1000);
  EXPECT_EQ(all[1].piece.length, 1000u);
  EXPECT_EQ(all[1].piece.lkey, 11u);
  EXPECT_EQ(SendQueue::LaneOf(all[1].request.wr_id), kLane);
}

struct ChainCase {
  const char* name;
  size_t writes;
  uint64_t size;
  SendQueueLimits limits;
  bool flush;
  std::vector<size_t> chains;
};

const ChainCase kChainCases[] = {
    {"one_write", 1, 100, {}, true, {1}},
    {"one_more_than_a_chain", 17, 100, {}, true, {16, 1}},
    {"what_is_no_whole_chain_waits", 17, 100, {}, false, {16}},
    {"less_than_a_chain_waits", 15, 100, {}, false, {}},
    {"many_bytes_close_a_chain", 6, 512 << 10, {}, true, {2, 2, 2}},
    {"the_bytes_of_a_chain_are_counted_before", 5, 600 << 10, {}, true, {2, 2, 1}},
    {"long_writes_go_alone", 3, 4 << 20, {}, true, {1, 1, 1}},
    {"up_to_the_depth", 40, 100, {.depth = 20}, true, {16, 4}},
    {"a_depth_of_four", 40, 100, {.depth = 4, .chain = 4}, true, {4}},
    {"a_depth_of_one", 3, 100, {.depth = 1, .chain = 1}, true, {1}},
};

class ChainTest : public SendQueueTest, public testing::WithParamInterface<ChainCase> {};

TEST_P(ChainTest, WithOneSignalledRequestItsLast) {
  const ChainCase& c = GetParam();
  Make(c.limits);
  queue->Append(Writes(c.writes, c.size), std::nullopt, 1);
  ASSERT_TRUE(Pump(c.flush).ok());
  EXPECT_EQ(verbs.chain_sizes(), c.chains);
  for (const std::vector<Request>& chain : verbs.chains) {
    for (size_t i = 0; i < chain.size(); ++i) {
      const bool signalled = (chain[i].request.send_flags & IBV_SEND_SIGNALED) != 0;
      EXPECT_EQ(signalled, i + 1 == chain.size()) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chains, ChainTest, testing::ValuesIn(kChainCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(SendQueueTest, LongWritesAreSplitAndTheImmediateRidesOnTheLastPart) {
  Make({.message_bytes = 1000});
  queue->Append(Writes(1, 2500), 5, 1);
  queue->Append(Writes(1, 2000), 6, 2);
  queue->Append(Writes(1, 1000), std::nullopt, 3);
  ASSERT_TRUE(Pump().ok());
  const std::vector<Request> all = verbs.all();
  const std::vector<uint32_t> kSizes = {1000, 1000, 500, 1000, 1000, 1000};
  const std::vector<uint32_t> kOffsets = {0, 1000, 2000, 0, 1000, 0};
  ASSERT_EQ(all.size(), kSizes.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].piece.length, kSizes[i]) << i;
    EXPECT_EQ(all[i].piece.addr, 0x1000 + kOffsets[i]) << i;
    EXPECT_EQ(all[i].request.wr.rdma.remote_addr, 0x900000 + kOffsets[i]) << i;
    EXPECT_EQ(all[i].request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM, i == 2 || i == 4) << i;
  }
  EXPECT_EQ(Retire(all[2].request.wr_id), std::vector<uint64_t>{1});
  EXPECT_EQ(Retire(all[3].request.wr_id), std::vector<uint64_t>{});  // Half of the second post.
  EXPECT_EQ(Retire(all[5].request.wr_id), (std::vector<uint64_t>{2, 3}));
}

TEST_F(SendQueueTest, OnlyShortWritesFromHostMemoryRideInTheirRequest) {
  Make({});
  queue->AllowInline(64);
  std::vector<RemoteWrite> writes = Writes(4, 64);
  for (RemoteWrite& write : writes) write.may_inline = true;
  writes[1].size_bytes = 65;
  writes[2].size_bytes = 0;
  writes[3].may_inline = false;
  queue->Append(writes, std::nullopt, 1);
  ASSERT_TRUE(Pump().ok());
  const std::vector<Request> all = verbs.all();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((all[i].request.send_flags & IBV_SEND_INLINE) != 0, i == 0) << i;
  }
  EXPECT_EQ(all[2].request.num_sge, 0);
}

TEST_F(SendQueueTest, APostOfNothingIsARequest) {
  Make({});
  queue->Append({}, 7, 1);
  queue->Append({}, std::nullopt, 2);
  ASSERT_TRUE(Pump().ok());
  const std::vector<Request> all = verbs.all();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].request.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(all[1].request.opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(Retire(all[1].request.wr_id), (std::vector<uint64_t>{1, 2}));
}

TEST_F(SendQueueTest, WhatIsOutstandingNeverPassesTheDepthAndEveryPostIsCompleteOnce) {
  std::mt19937 random(11);
  Make({.depth = 10, .chain = 4, .posts = 8});
  uint64_t appended = 0;
  uint64_t expected = 0;
  for (int round = 0; round < 5000; ++round) {
    if (!queue->full() && random() % 2 == 0) {
      queue->Append(Writes(1 + random() % 9, 10), std::nullopt, appended++);
    }
    ASSERT_TRUE(Pump(random() % 2 == 0).ok());
    ASSERT_LE(queue->outstanding(), 10u);
    if (!verbs.chains.empty() && random() % 3 == 0) {  // The oldest chain is complete.
      const uint64_t last = verbs.chains.front().back().request.wr_id;
      for (const uint64_t token : Retire(last)) ASSERT_EQ(token, expected++);
      verbs.chains.erase(verbs.chains.begin());
    }
  }
  EXPECT_GT(expected, 500u);
}

TEST_F(SendQueueTest, AfterAPartialPostTheRestGoesOutWhenThereIsRoom) {
  Make({});
  queue->Append(Writes(2, 10), std::nullopt, 1);
  ASSERT_TRUE(Pump().ok());
  verbs.room = 3;
  queue->Append(Writes(8, 10), std::nullopt, 2);
  ASSERT_TRUE(Pump().ok());
  EXPECT_EQ(verbs.all().size(), 5u);
  EXPECT_EQ(counts.requests, 5u);
  EXPECT_TRUE(queue->has_waiting());
  EXPECT_EQ(Retire(Number(2)), std::vector<uint64_t>{1});
  verbs.room.reset();
  ASSERT_TRUE(Pump().ok());
  const std::vector<Request> all = verbs.all();
  ASSERT_EQ(all.size(), 10u);
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(all[i].request.wr_id, Number(i + 1));
  EXPECT_EQ(Retire(all[9].request.wr_id), std::vector<uint64_t>{2});
}

TEST_F(SendQueueTest, ARefusalThatNamesNoRequestHasPostedNone) {
  Make({});
  verbs.room = 0;
  verbs.error = EACCES;
  verbs.names_bad = false;
  queue->Append(Writes(2, 10), std::nullopt, 1);
  const absl::Status status = Pump();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "request 1 of 2 refused: Permission denied"))
      << status;
  EXPECT_EQ(queue->outstanding(), 0u);
}

TEST_F(SendQueueTest, AFullQueueIsNoErrorWhileSomethingWillBeComplete) {
  Make({});
  queue->Append(Writes(1, 10), std::nullopt, 1);
  ASSERT_TRUE(Pump().ok());
  verbs.room = 0;
  queue->Append(Writes(1, 10), std::nullopt, 2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Pump().ok());
  EXPECT_EQ(Retire(Number(1)), std::vector<uint64_t>{1});
  const absl::Status status = Pump();  // Nothing is outstanding: it would wait for ever.
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "ibv_post_send: request 1 of 1 refused"))
      << status;
}

TEST_F(SendQueueTest, BehindUnsignalledRequestsTheRestIsPostedAtOnce) {
  Make({});
  verbs.room = 3;
  verbs.once = true;
  queue->Append(Writes(8, 10), std::nullopt, 1);
  ASSERT_TRUE(Pump().ok());
  EXPECT_EQ(verbs.chain_sizes(), (std::vector<size_t>{3, 5}));
  EXPECT_EQ(Retire(Number(8)), std::vector<uint64_t>{1});
}

TEST_F(SendQueueTest, UnsignalledRequestsAreNothingToWaitFor) {
  Make({});
  verbs.room = 3;
  queue->Append(Writes(8, 10), std::nullopt, 1);
  // Three were taken, none of them signalled: no completion would ever ask for the rest.
  EXPECT_EQ(Pump().code(), absl::StatusCode::kInternal);
}

TEST_F(SendQueueTest, AnyOtherErrorIsOne) {
  Make({});
  queue->Append(Writes(1, 10), std::nullopt, 1);
  ASSERT_TRUE(Pump().ok());
  verbs.room = 2;
  verbs.error = EINVAL;
  queue->Append(Writes(5, 10), std::nullopt, 2);
  const absl::Status status = Pump();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "request 3 of 5 refused: Invalid argument"))
      << status;
}

TEST_F(SendQueueTest, NumbersOfNothingThatIsOutstandingAreIgnored) {
  Make({});
  for (uint64_t token = 1; token <= 4; ++token) queue->Append({}, std::nullopt, token);
  ASSERT_TRUE(Pump().ok());
  EXPECT_EQ(Retire(Number(2)), (std::vector<uint64_t>{1, 2}));
  for (const uint32_t number : {0u, 1u, 2u, 5u, 100u, 0x8000'0000u, 0xFFFF'FFFFu}) {
    EXPECT_EQ(Retire(Number(number)), std::vector<uint64_t>{}) << number;
  }
  EXPECT_EQ(queue->outstanding(), 2u);
  EXPECT_EQ(Retire(Number(4)), (std::vector<uint64_t>{3, 4}));
}

TEST_F(SendQueueTest, NumbersWrapAround) {
  Make({.depth = 8, .chain = 4}, 0xFFFF'FFFAu);
  std::vector<uint64_t> tokens;
  for (uint64_t token = 1; token <= 6; ++token) {
    queue->Append(Writes(3, 10), std::nullopt, token);
    ASSERT_TRUE(Pump().ok());
    ASSERT_LE(queue->outstanding(), 8u);
    queue->Retire(verbs.chains.back().back().request.wr_id, tokens);
    EXPECT_EQ(queue->outstanding(), 0u);
  }
  EXPECT_EQ(tokens, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6}));
  for (const Request& posted : verbs.all()) {
    EXPECT_EQ(SendQueue::LaneOf(posted.request.wr_id), kLane);
  }
  EXPECT_EQ(verbs.all().back().request.wr_id, Number(12));
}

TEST_F(SendQueueTest, AsManyPostsAsThereMayBe) {
  Make({.posts = 3});
  for (uint64_t token = 1; token <= 3; ++token) {
    EXPECT_FALSE(queue->full());
    queue->Append({}, std::nullopt, token);
  }
  EXPECT_TRUE(queue->full());
  ASSERT_TRUE(Pump().ok());
  EXPECT_TRUE(queue->full());
  EXPECT_EQ(Retire(Number(3)), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_FALSE(queue->full());
}

}  // namespace
}  // namespace waybill::verbs
