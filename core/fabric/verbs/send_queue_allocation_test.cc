// SPDX-License-Identifier: Apache-2.0

// A send queue that has held as much before allocates nothing.
#include <gtest/gtest.h>

#include <vector>

#include "core/fabric/verbs/send_queue.h"
#include "testing/allocations/allocations.h"
#include "testing/fake_verbs/fake_host.h"
#include "testing/fake_verbs/wire.h"

namespace waybill::verbs {
namespace {

class TakesAll final : public fake_verbs::FakeHost {
 public:
  using FakeHost::FakeHost;
  int PostSend(ibv_qp*, ibv_send_wr*, ibv_send_wr**) override { return 0; }
};

TEST(SendQueueAllocation, ThereIsNoneWhenItIsWarm) {
  fake_verbs::Wire wire{{}};
  TakesAll verbs(&wire);
  SendCounts counts;
  constexpr uint32_t kDepth = 200;
  SendQueue queue(1, {.depth = kDepth}, &counts);
  const std::vector<RemoteWrite> writes(5 * kDepth, {.size_bytes = 10});
  std::vector<uint64_t> tokens;
  tokens.reserve(16);
  uint64_t number = 0;
  const auto send = [&] {
    queue.Append(writes, 1, 1);
    while (queue.has_waiting()) {
      ASSERT_TRUE(queue.Pump(verbs, nullptr, /*flush=*/true).ok());
      queue.Retire(uint64_t{1} << 32 | (number += kDepth), tokens);
    }
  };
  send();
  BeginCountingAllocations();
  send();
  EXPECT_EQ(EndCountingAllocations(), 0u);
  EXPECT_EQ(tokens.size(), 2u);
}

}  // namespace
}  // namespace waybill::verbs
