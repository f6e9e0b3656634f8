// SPDX-License-Identifier: Apache-2.0

#include "core/engine/maxima_exchange.h"

#include <gtest/gtest.h>

#include <bit>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/fabric/loopback/loopback.h"
#include "testing/faulty_fabric/faulty_fabric.h"

namespace waybill {
namespace {

uint16_t Bf16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// One of two senders, each of which holds two of the four rows of one block.
struct Side {
  Side(LoopbackNetwork& network, uint32_t sender)
      : rank(sender),
        fabric(std::make_unique<FaultyFabric>(network.Join(absl::StrCat("trainer ", sender)))),
        exchange(fabric.get(), [this](uint32_t peer, const absl::Status& status) {
          failures.push_back(absl::StrCat("trainer ", peer, ": ", status.message()));
        }) {
    const int64_t row = 2 * sender;
    plan.tables.push_back({.source_strides = {4, 1},
                           .quantisation = {.block_rows = 4, .block_columns = 4},
                           .block = {4, 4},
                           .cell = {4, 4},
                           .box = Box({row, 0}, {row + 2, 4}),
                           .blocks = Box({0, 0}, {1, 1}),
                           .cells = Box({0, 0}, {1, 1})});
    plan.mailbox_bytes = 64;
    values.emplace_back(plan.tables.data(), reinterpret_cast<const std::byte*>(elements), cells);
    values[0].Share({0, 0, 1});
    values[0].PlanEarlyTasks();
  }

  // The block's maximum, told in `step`.
  MaximaMessage Message(uint32_t step) const {
    return {.peer = 1 - rank, .step = step, .runs = {{0, 0, 1}}};
  }

  // Begins an update in which `largest` is this side's largest element.
  void Begin(uint32_t sequence, float largest) {
    elements[3] = Bf16(-largest);
    values[0].Begin();
    for (uint32_t i = 0; i < values[0].early_task_count(); ++i) values[0].RunEarlyTask(i);
    exchange.Begin({.version = sequence, .sequence = sequence, .epoch = 1});
    counts = {};
  }

  void Step() {
    std::vector<FabricEvent> events;
    fabric->Poll(events);
    for (const FabricEvent& event : events) exchange.Handle(event);
    exchange.Step(counts);
  }

  uint32_t rank;
  uint16_t elements[8] = {};
  std::byte cells[4] = {};
  Exchange plan;
  std::deque<ScaleValues> values;
  std::vector<std::string> failures;
  TransferCounts counts;
  std::unique_ptr<FaultyFabric> fabric;
  MaximaExchange exchange;
};

class MaximaExchangeTest : public testing::Test {
 protected:
  // Sender 0 sends in `steps[0]`, sender 1 in `steps[1]`.
  void Connect(uint32_t step0, uint32_t step1) {
    a_.plan.outgoing = {a_.Message(step0)};
    a_.plan.incoming = {a_.Message(step1)};
    b_.plan.outgoing = {b_.Message(step1)};
    b_.plan.incoming = {b_.Message(step0)};
    const auto of_a = a_.exchange.SetPlan(&a_.plan, &a_.values);
    const auto of_b = b_.exchange.SetPlan(&b_.plan, &b_.values);
    ASSERT_TRUE(of_a.ok() && of_b.ok());
    ASSERT_TRUE(a_.exchange.Connect({{{1, (*of_b)[0].address, b_.exchange.mailbox()}}}).ok());
    ASSERT_TRUE(b_.exchange.Connect({{{0, (*of_a)[0].address, a_.exchange.mailbox()}}}).ok());
    Step();
    ASSERT_TRUE(a_.exchange.up() && b_.exchange.up());
  }
  void Step() {
    for (int i = 0; i < 50; ++i) {
      a_.Step();
      b_.Step();
    }
  }

  LoopbackNetwork network_;
  Side a_{network_, 0};
  Side b_{network_, 1};
};

TEST_F(MaximaExchangeTest, BothSidesHaveTheLargerMaximum) {
  Connect(0, 0);
  for (uint32_t sequence = 1; sequence <= 3; ++sequence) {
    const auto larger = static_cast<float>(2 * sequence);
    a_.Begin(sequence, sequence % 2 == 0 ? larger : 1);
    b_.Begin(sequence, sequence % 2 == 0 ? 1 : larger);
    EXPECT_FALSE(a_.exchange.done());
    Step();
    EXPECT_TRUE(a_.exchange.done() && b_.exchange.done());
    EXPECT_EQ(a_.values[0].maximum(0), larger);
    EXPECT_EQ(b_.values[0].maximum(0), larger);
    EXPECT_EQ(a_.counts.maxima_messages, 1u);
    EXPECT_EQ(a_.counts.maxima_bytes, sizeof(MaximaHeader) + sizeof(float));
  }
}

TEST_F(MaximaExchangeTest, AMessageWaitsForThoseOfEarlierSteps) {
  Connect(/*step0=*/1, /*step1=*/0);
  a_.Begin(1, 3);
  for (int i = 0; i < 50; ++i) a_.Step();
  EXPECT_EQ(a_.counts.maxima_messages, 0u);
  b_.Begin(1, 5);
  Step();
  EXPECT_TRUE(a_.exchange.done() && b_.exchange.done());
  EXPECT_EQ(a_.values[0].maximum(0), 5);
}

TEST_F(MaximaExchangeTest, AMessageOfAnotherUpdateIsNotTaken) {
  Connect(0, 0);
  b_.Begin(7, 100);
  Step();
  a_.Begin(8, 3);
  Step();
  EXPECT_FALSE(a_.exchange.all_come());
  EXPECT_EQ(a_.values[0].maximum(0), 3);
  b_.Begin(8, 5);
  Step();
  EXPECT_TRUE(a_.exchange.done());
  EXPECT_EQ(a_.values[0].maximum(0), 5);
}

TEST_F(MaximaExchangeTest, AMessageThatTheLaneRefusesIsSentLater) {
  Connect(0, 0);
  a_.fabric->FailCall(FabricCall::kPost, "", 1, absl::ResourceExhaustedError("full"));
  a_.Begin(1, 3);
  b_.Begin(1, 5);
  Step();
  EXPECT_EQ(a_.fabric->faults(), 1u);
  EXPECT_TRUE(a_.exchange.done() && b_.exchange.done());
}

TEST_F(MaximaExchangeTest, ADeadLaneIsReportedOnceAndNothingIsLeftOutstanding) {
  Connect(0, 0);
  a_.Begin(1, 3);
  b_.Begin(1, 5);
  a_.fabric->KillLanes("", absl::UnavailableError("cut"));
  Step();
  EXPECT_EQ(a_.failures, (std::vector<std::string>{"trainer 1: cut"}));
  EXPECT_EQ(b_.failures.size(), 1u);
  EXPECT_FALSE(a_.exchange.all_come());
  EXPECT_EQ(a_.exchange.posts_outstanding(), 0u);
}

TEST_F(MaximaExchangeTest, StoppingAtOnceClosesTheLanesThatHaveWritesOutstanding) {
  Connect(0, 0);
  a_.fabric->HoldPosts("");
  a_.Begin(1, 3);
  b_.Begin(1, 5);
  Step();
  EXPECT_EQ(a_.exchange.posts_outstanding(), 1u);
  EXPECT_EQ(b_.exchange.posts_outstanding(), 0u);
  a_.exchange.StopNow();
  b_.exchange.StopNow();
  EXPECT_EQ(a_.exchange.posts_outstanding(), 0u);
  EXPECT_EQ(a_.failures.size(), 1u);
  EXPECT_TRUE(b_.failures.empty());
}

}  // namespace
}  // namespace waybill
