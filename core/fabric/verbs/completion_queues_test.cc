// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/completion_queues.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill::verbs {
namespace {

using fake_verbs::DeviceOptions;
using fake_verbs::FakeHost;
using fake_verbs::FakeNetwork;

class CompletionQueuesTest : public testing::Test {
 protected:
  void Make(const DeviceOptions& options) {
    host.AddDevice("mlx5_0", options);
    ibv_device** list = host.GetDeviceList(nullptr);
    device = *Device::Open(&host, list[0]);
    host.FreeDeviceList(list);
    queues = *CompletionQueues::Create(&host, device.get());
  }

  // One of as many sends and receives, in ERR: what is posted is flushed.
  ibv_qp* MakeFlushing(const CqPair& pair, uint32_t sends, uint32_t receives) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = pair.send;
    attributes.recv_cq = pair.receive;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {sends, receives, 1, 1, 0};
    ibv_qp* qp = host.CreateQp(device->pd(), &attributes);
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_INIT;
    to.port_num = 1;
    EXPECT_EQ(host.ModifyQp(qp, &to,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
    to.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(host.ModifyQp(qp, &to, IBV_QP_STATE), 0);
    return qp;
  }

  void Flush(ibv_qp* qp, uint32_t sends, uint32_t receives) {
    for (uint32_t i = 0; i < sends; ++i) {
      ibv_send_wr request{};
      request.opcode = IBV_WR_RDMA_WRITE;
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(host.PostSend(qp, &request, &bad), 0);
    }
    for (uint32_t i = 0; i < receives; ++i) {
      ibv_recv_wr request{};
      ibv_recv_wr* bad = nullptr;
      ASSERT_EQ(host.PostRecv(qp, &request, &bad), 0);
    }
  }

  bool Poll() {
    received.clear();
    sent.clear();
    return queues->Poll(received, sent);
  }
  bool HasEvent() const {
    pollfd asked{.fd = queues->fd(), .events = POLLIN, .revents = 0};
    return poll(&asked, 1, 0) == 1;
  }

  FakeNetwork network;
  FakeHost& host = network.Host("a");
  std::unique_ptr<Device> device;
  std::unique_ptr<CompletionQueues> queues;
  std::vector<ibv_wc> received;
  std::vector<ibv_wc> sent;
};

TEST_F(CompletionQueuesTest, LanesShareAPairWhileItHasRoomForAFullFlushOfEach) {
  Make({.max_cqe = 1000});
  CqPair* const first = *queues->Take(400);
  EXPECT_EQ(*queues->Take(600), first);
  CqPair* const second = *queues->Take(1);
  EXPECT_NE(second, first);
  EXPECT_EQ(*queues->Take(999), second);
  EXPECT_EQ(host.counts("mlx5_0").completion_queues, 4u);
}

TEST_F(CompletionQueuesTest, ALaneThatNeedsMoreThanAQueueHasIsRefusedWithTheNumbers) {
  Make({.max_cqe = 100});
  const absl::Status status = queues->Take(101).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "a lane needs 101 completion queue entries, mlx5_0 has queues of 100: use a smaller "
            "queue depth");
  EXPECT_TRUE(queues->Take(100).ok());
}

TEST_F(CompletionQueuesTest, AFullFlushOfEveryLaneNeverOverruns) {
  constexpr uint32_t kSends = 40;
  constexpr uint32_t kReceives = 10;
  Make({.max_cqe = 170});  // Room for three lanes on a pair.
  std::vector<ibv_qp*> lanes;
  for (int i = 0; i < 8; ++i) {
    lanes.push_back(MakeFlushing(**queues->Take(kSends + kReceives), kSends, kReceives));
  }
  for (ibv_qp* lane : lanes) Flush(lane, kSends, kReceives);
  size_t all_sent = 0;
  size_t all_received = 0;
  while (Poll()) {
    all_sent += sent.size();
    all_received += received.size();
  }
  EXPECT_EQ(all_sent, 8 * kSends);
  EXPECT_EQ(all_received, 8 * kReceives);
  for (ibv_qp* lane : lanes) host.DestroyQp(lane);
  pollfd events{.fd = device->context()->async_fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&events, 1, 0), 0);
}

TEST_F(CompletionQueuesTest, TheRoomOfALaneIsFreeWhenItsLastCompletionsWerePolled) {
  Make({.max_cqe = 100, .completions_outlive_queue_pairs = true});
  CqPair* const pair = *queues->Take(100);
  ibv_qp* lane = MakeFlushing(*pair, 40, 60);
  Flush(lane, 40, 60);
  host.DestroyQp(lane);
  queues->Return(pair, 100);
  EXPECT_EQ(pair->used, 100u);
  EXPECT_TRUE(Poll());
  EXPECT_EQ(pair->used, 100u);
  EXPECT_TRUE(Poll());
  EXPECT_FALSE(Poll());
  EXPECT_EQ(pair->used, 0u);
  EXPECT_EQ(*queues->Take(100), pair);
}

TEST_F(CompletionQueuesTest, ADeadPairIsUsedNoMoreAndGoesWithItsLastLane) {
  Make({.max_cqe = 100});
  CqPair* const pair = *queues->Take(20);
  (void)*queues->Take(30);
  ibv_qp* lane = MakeFlushing(*pair, 4, 4);
  host.Overrun("mlx5_0", lane->qp_num, fake_verbs::Direction::kSend);
  ibv_async_event event;
  ASSERT_EQ(host.GetAsyncEvent(device->context(), &event), 0);
  host.AckAsyncEvent(&event);
  EXPECT_EQ(queues->MarkDead(event.element.cq), pair);
  EXPECT_EQ(queues->MarkDead(nullptr), nullptr);
  CqPair* const other = *queues->Take(20);
  EXPECT_NE(other, pair);
  host.DestroyQp(lane);
  queues->Return(pair, 20);
  EXPECT_FALSE(Poll());
  EXPECT_EQ(host.counts("mlx5_0").completion_queues, 4u);
  queues->Return(pair, 30);
  EXPECT_FALSE(Poll());
  EXPECT_EQ(host.counts("mlx5_0").completion_queues, 2u);
  EXPECT_EQ(*queues->Take(20), other);
}

TEST_F(CompletionQueuesTest, OnceArmedTheNextCompletionOfEitherQueueIsAnEvent) {
  Make({});
  CqPair* const pair = *queues->Take(100);
  ibv_qp* lane = MakeFlushing(*pair, 4, 4);
  Flush(lane, 1, 1);
  EXPECT_FALSE(HasEvent());
  for (const auto& [sends, receives] : {std::pair(1u, 0u), {0u, 1u}, {1u, 1u}}) {
    while (Poll()) {
    }
    ASSERT_TRUE(queues->Arm().ok());
    ASSERT_TRUE(queues->Arm().ok());
    EXPECT_FALSE(HasEvent());
    Flush(lane, sends, receives);
    EXPECT_TRUE(HasEvent());
    queues->TakeEvents();
    EXPECT_FALSE(HasEvent());
    EXPECT_FALSE(pair->armed);
  }
  host.DestroyQp(lane);
}

TEST_F(CompletionQueuesTest, ADeviceThatGivesNoneIsTold) {
  Make({.max_cqe = 100});
  host.FailDevice("mlx5_0");
  const absl::Status status = queues->Take(10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "ibv_create_cq of mlx5_0, 100 entries"))
      << status;
}

}  // namespace
}  // namespace waybill::verbs
