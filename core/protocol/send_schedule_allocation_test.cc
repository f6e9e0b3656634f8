// SPDX-License-Identifier: Apache-2.0

// A schedule allocates nothing once its peers are set.

#include <gtest/gtest.h>

#include <vector>

#include "core/protocol/send_schedule.h"
#include "testing/allocations/allocations.h"

namespace waybill {
namespace {

// Everything is carried out at once.
void Send(SendSchedule& schedule, const std::vector<Payload>& payloads,
          const std::vector<TakesPart>& parts) {
  using Kind = SendCommand::Kind;
  schedule.Begin(payloads, parts, FinishRule::kAtOnce);
  for (const Payload& payload : payloads) schedule.Release(payload.id);
  schedule.OnScalesKnown();
  schedule.OnTradeQuiet();
  for (SendCommand command; schedule.Next(command);) {
    if (command.kind == Kind::kStore) schedule.OnStored(command.lane.peer, 1);
    if (command.kind == Kind::kStage) schedule.OnStaged(command.slot);
    if (command.kind != Kind::kPost && command.kind != Kind::kEndLane) {
      continue;
    }
    schedule.OnAccepted(command);
    schedule.OnComplete(command.lane,
                        command.kind == Kind::kEndLane ? SendSchedule::kNoSlot : command.slot);
  }
}

TEST(SendScheduleAllocation, AnUpdateAllocatesNothing) {
  SlotPool pool(4);
  SendSchedule schedule(&pool);
  schedule.SetPeers({{1, 2, 3}}, 100);
  const std::vector<TakesPart> parts(3, TakesPart::kYes);
  std::vector<Payload> payloads;
  for (uint32_t i = 0; i < 100; ++i) {
    payloads.push_back({.id = i,
                        .lane = {i % 3, i % 3},
                        .size_bytes = 1,
                        .way = i % 4 == 0 ? SendWay::kStored : SendWay::kStaged,
                        .held = i % 5 == 0});
  }
  BeginCountingAllocations();
  Send(schedule, payloads, parts);
  EXPECT_EQ(EndCountingAllocations(), 0u);
  EXPECT_EQ(schedule.counts().bytes, 100u);
  EXPECT_EQ(schedule.counts().immediates, 6u);
}

}  // namespace
}  // namespace waybill
