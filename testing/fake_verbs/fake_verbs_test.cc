// SPDX-License-Identifier: Apache-2.0

// The simulated NIC keeps the rules of a real one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "testing/fake_verbs/fake_network.h"

namespace waybill::fake_verbs {
namespace {

bool IsReadable(int fd) {
  pollfd asked{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&asked, 1, 0) == 1;
}

// A device opened by a program, with one queue pair and one piece of registered memory.
class Program {
 public:
  struct Options {
    int entries = 64;
    uint32_t depth = 8;
    uint32_t receives = 4;
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    unsigned queue_pair_access = IBV_ACCESS_REMOTE_WRITE;
    uint8_t reads_to_peer = 1;    // Outstanding ones,
    uint8_t reads_from_peer = 1;  // in each direction.
  };

  Program(FakeNetwork& network, const std::string& name, const DeviceOptions& device,
          const Options& with)
      : options(with), host(network.Host(name)), memory(4096) {
    host.AddDevice("mlx5_0", device);
    ibv_device** list = host.GetDeviceList(nullptr);
    context = host.OpenDevice(list[0]);
    host.FreeDeviceList(list);
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    pd = host.AllocPd(context);
    mr = host.RegMr(pd, memory.data(), memory.size(), options.access);
    channel = host.CreateCompChannel(context);
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    send = host.CreateCq(context, options.entries, channel);
    receive = host.CreateCq(context, options.entries, channel);
    ibv_qp_init_attr attributes{};
    attributes.send_cq = send;
    attributes.recv_cq = receive;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {options.depth, options.receives, 1, 1, 64};
    qp = host.CreateQp(pd, &attributes);
  }

  ~Program() {
    if (qp != nullptr) host.DestroyQp(qp);
    host.DestroyCq(send);
    host.DestroyCq(receive);
    host.DestroyCompChannel(channel);
    if (mr != nullptr) host.DeregMr(mr);
    host.DeallocPd(pd);
    host.CloseDevice(context);
  }

  int ToInit() {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_INIT;
    to.port_num = 1;
    to.qp_access_flags = options.queue_pair_access;
    return host.ModifyQp(qp, &to,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }

  int ToReceive(const Program& peer) {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTR;
    to.path_mtu = IBV_MTU_1024;
    to.dest_qp_num = peer.qp->qp_num;
    to.max_dest_rd_atomic = options.reads_from_peer;
    to.ah_attr.port_num = 1;
    to.ah_attr.is_global = 1;
    to.ah_attr.grh.sgid_index = 3;
    ibv_gid_entry gid;
    peer.host.QueryGid(peer.context, 1, 3, &gid);
    to.ah_attr.grh.dgid = gid.gid;
    return host.ModifyQp(qp, &to,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }

  int ToSend(uint8_t rnr_retry = 7) {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTS;
    to.retry_cnt = 6;
    to.rnr_retry = rnr_retry;
    to.max_rd_atomic = options.reads_to_peer;
    return host.ModifyQp(qp, &to,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }

  struct Sent {
    uint32_t size = 16;
    uint64_t from = 0;
    uint64_t to = 0;
    bool signalled = true;
    bool immediate = false;
    bool is_inline = false;
    bool is_read = false;
    uint32_t local_key = 0;   // 0: the right one.
    uint32_t remote_key = 0;  // 0: the right one.
  };

  // A chain; request i has the number 100 + i. How many were posted, and the errno.
  std::pair<size_t, int> Post(const Program& peer, const std::vector<Sent>& sent) {
    std::vector<ibv_sge> pieces(sent.size());
    std::vector<ibv_send_wr> chain(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      const Sent& s = sent[i];
      pieces[i] = {reinterpret_cast<uintptr_t>(memory.data()) + s.from, s.size,
                   s.local_key != 0 ? s.local_key : mr->lkey};
      chain[i] = {};
      chain[i].wr_id = 100 + i;
      chain[i].next = i + 1 < sent.size() ? &chain[i + 1] : nullptr;
      chain[i].sg_list = &pieces[i];
      chain[i].num_sge = 1;
      chain[i].opcode = s.is_read     ? IBV_WR_RDMA_READ
                        : s.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM
                                      : IBV_WR_RDMA_WRITE;
      chain[i].send_flags = (s.signalled ? unsigned{IBV_SEND_SIGNALED} : 0u) |
                            (s.is_inline ? unsigned{IBV_SEND_INLINE} : 0u);
      chain[i].imm_data = 77;
      chain[i].wr.rdma = {reinterpret_cast<uintptr_t>(peer.memory.data()) + s.to,
                          s.remote_key != 0 ? s.remote_key : peer.remote_key()};
    }
    ibv_send_wr* bad = nullptr;
    const int error = host.PostSend(qp, chain.data(), &bad);
    return {bad == nullptr ? sent.size() : static_cast<size_t>(bad - chain.data()), error};
  }

  int PostReceives(int count) {
    int error = 0;
    for (int i = 0; i < count && error == 0; ++i) {
      ibv_recv_wr request{};
      request.wr_id = 200 + static_cast<uint64_t>(i);
      ibv_recv_wr* bad = nullptr;
      error = host.PostRecv(qp, &request, &bad);
    }
    return error;
  }

  std::vector<ibv_wc> Poll(ibv_cq* cq) const {
    std::vector<ibv_wc> done(128);
    done.resize(static_cast<size_t>(host.PollCq(cq, 128, done.data())));
    return done;
  }
  using Statuses = std::vector<std::pair<uint64_t, ibv_wc_status>>;
  Statuses PollStatuses(ibv_cq* cq) const {
    Statuses statuses;
    for (const ibv_wc& done : Poll(cq)) statuses.emplace_back(done.wr_id, done.status);
    return statuses;
  }

  bool GetEvent(ibv_async_event& event) const {
    if (host.GetAsyncEvent(context, &event) != 0) return false;
    host.AckAsyncEvent(&event);
    return true;
  }

  uint32_t remote_key() const { return mr->rkey; }

  const Options options;
  FakeHost& host;
  std::vector<std::byte> memory;
  ibv_context* context;
  ibv_pd* pd;
  ibv_mr* mr;
  ibv_comp_channel* channel;
  ibv_cq* send;
  ibv_cq* receive;
  ibv_qp* qp;
};

class FakeVerbsTest : public testing::Test {
 protected:
  // `at_b`: the options of b, if they are others than those of a.
  void Start(const Program::Options& options = {}, const DeviceOptions& device = {},
             const std::optional<Program::Options>& at_b = std::nullopt) {
    a.emplace(network, "a", device, options);
    b.emplace(network, "b", device, at_b.value_or(options));
  }
  void Connect(const Program::Options& options = {}, const DeviceOptions& device = {},
               uint8_t rnr_retry = 7, const std::optional<Program::Options>& at_b = std::nullopt) {
    Start(options, device, at_b);
    for (auto* p : {&*a, &*b}) ASSERT_EQ(p->ToInit(), 0);
    ASSERT_EQ(a->ToReceive(*b), 0);
    ASSERT_EQ(b->ToReceive(*a), 0);
    for (auto* p : {&*a, &*b}) ASSERT_EQ(p->ToSend(rnr_retry), 0);
  }

  FakeNetwork network;
  std::optional<Program> a;
  std::optional<Program> b;
};

using Statuses = Program::Statuses;

TEST_F(FakeVerbsTest, AWriteLandsAndIsCompletedWhereItIsSignalled) {
  Connect();
  std::memset(a->memory.data(), 0x55, 64);
  ASSERT_EQ(
      a->Post(*b, {{.size = 10, .to = 100, .signalled = false}, {.size = 4, .to = 200}}).second, 0);
  EXPECT_EQ(b->memory[100], std::byte{0});  // Nothing moves before somebody polls.
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{101, IBV_WC_SUCCESS}}));
  EXPECT_EQ(b->memory[109], std::byte{0x55});
  EXPECT_EQ(b->memory[110], std::byte{0});
  EXPECT_EQ(b->memory[203], std::byte{0x55});
  EXPECT_EQ(a->host.counts("mlx5_0").requests, 2u);
  EXPECT_EQ(a->host.counts("mlx5_0").signalled, 1u);
  EXPECT_EQ(a->host.counts("mlx5_0").post_send_calls, 1u);
}

TEST_F(FakeVerbsTest, AnImmediateTakesAReceiveAndWaitsForOne) {
  Connect();
  ASSERT_EQ(a->Post(*b, {{.immediate = true}}).second, 0);
  EXPECT_TRUE(a->Poll(a->send).empty());
  ASSERT_EQ(b->PostReceives(1), 0);
  const std::vector<ibv_wc> come = b->Poll(b->receive);
  ASSERT_EQ(come.size(), 1u);
  EXPECT_EQ(come[0].wr_id, 200u);
  EXPECT_EQ(come[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(come[0].imm_data, 77u);
  EXPECT_EQ(come[0].byte_len, 16u);
  EXPECT_EQ(a->Poll(a->send).size(), 1u);
}

TEST_F(FakeVerbsTest, AReadBringsThePeersBytesAndSaysThatTheyWereRead) {
  int reads = 0;
  Connect({.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
           .queue_pair_access = IBV_ACCESS_REMOTE_READ},
          {.after_read = [&] { ++reads; }});
  std::memset(b->memory.data() + 100, 0x55, 10);
  ASSERT_EQ(a->Post(*b, {{.size = 10, .from = 7, .to = 100, .is_read = true}}).second, 0);
  EXPECT_EQ(reads, 0);
  const std::vector<ibv_wc> done = a->Poll(a->send);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(done[0].opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(a->memory[6], std::byte{0});
  EXPECT_EQ(a->memory[7], std::byte{0x55});
  EXPECT_EQ(a->memory[16], std::byte{0x55});
  EXPECT_EQ(a->memory[17], std::byte{0});
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(a->host.counts("mlx5_0").reads, 1u);
}

constexpr unsigned kLocalWrite = IBV_ACCESS_LOCAL_WRITE;
constexpr unsigned kRemoteRead = IBV_ACCESS_REMOTE_READ;
constexpr unsigned kRemoteWrite = IBV_ACCESS_REMOTE_WRITE;

// A read by one end of the other's memory, and what becomes of it.
struct ReadCase {
  Program::Options reader;
  Program::Options peer;
  int refused = 0;
  ibv_wc_status status = IBV_WC_SUCCESS;
};

constexpr Program::Options kReader = {.access = kLocalWrite, .queue_pair_access = 0};
constexpr Program::Options kPeer = {.access = kRemoteRead, .queue_pair_access = kRemoteRead};

class ReadTest : public FakeVerbsTest, public testing::WithParamInterface<ReadCase> {};

TEST_P(ReadTest, NeedsPermissionAtThePeerAndToWriteHere) {
  Connect(GetParam().reader, {}, /*rnr_retry=*/7, GetParam().peer);
  EXPECT_EQ(a->Post(*b, {{.is_read = true}}).second, GetParam().refused);
  if (GetParam().refused != 0) return;
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{100, GetParam().status}}));
}

INSTANTIATE_TEST_SUITE_P(
    All, ReadTest,
    testing::Values(
        ReadCase{.reader = kReader, .peer = kPeer},
        ReadCase{.reader = {.access = 0}, .peer = kPeer, .status = IBV_WC_LOC_PROT_ERR},
        ReadCase{.reader = {.access = kLocalWrite, .reads_to_peer = 0},
                 .peer = kPeer,
                 .refused = EINVAL},
        ReadCase{.reader = kReader,
                 .peer = {.access = kLocalWrite | kRemoteWrite, .queue_pair_access = kRemoteRead},
                 .status = IBV_WC_REM_ACCESS_ERR},
        ReadCase{.reader = kReader,
                 .peer = {.access = kRemoteRead, .queue_pair_access = kRemoteWrite},
                 .status = IBV_WC_REM_ACCESS_ERR},
        ReadCase{
            .reader = kReader,
            .peer = {.access = kRemoteRead, .queue_pair_access = kRemoteRead, .reads_from_peer = 0},
            .status = IBV_WC_REM_INV_REQ_ERR}));

TEST_F(FakeVerbsTest, AQueuePairThatIsItsOwnPeerMayRefuseItself) {
  a.emplace(network, "a", DeviceOptions{}, Program::Options{});
  ASSERT_EQ(a->ToInit(), 0);
  ASSERT_EQ(a->ToReceive(*a), 0);
  ASSERT_EQ(a->ToSend(), 0);
  ASSERT_EQ(a->Post(*a, {{.is_read = true}, {}}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send),
            (Statuses{{100, IBV_WC_REM_ACCESS_ERR}, {101, IBV_WC_WR_FLUSH_ERR}}));
}

TEST_F(FakeVerbsTest, WithoutEndlessPatienceAReceiverThatIsNotReadyIsAnError) {
  Connect({}, {}, /*rnr_retry=*/3);
  ASSERT_EQ(a->Post(*b, {{.immediate = true}}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{100, IBV_WC_RNR_RETRY_EXC_ERR}}));
}

TEST_F(FakeVerbsTest, StatesAreGoneThroughInOrderAndSayWhatMayBePosted) {
  Start();
  EXPECT_EQ(a->ToReceive(*b), EINVAL);
  EXPECT_EQ(a->PostReceives(1), EINVAL);
  ASSERT_EQ(a->ToInit(), 0);
  EXPECT_EQ(a->PostReceives(1), 0);
  EXPECT_EQ(a->ToSend(), EINVAL);
  EXPECT_EQ(a->Post(*b, {{}}).second, EINVAL);
  ASSERT_EQ(a->ToReceive(*b), 0);
  EXPECT_EQ(a->Post(*b, {{}}).second, EINVAL);
  ASSERT_EQ(a->ToSend(), 0);
  EXPECT_EQ(a->Post(*b, {{}}).second, 0);
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(a->host.ModifyQp(a->qp, &to, IBV_QP_STATE), 0);
  EXPECT_EQ(a->Post(*b, {{}}).second, 0);  // Both are flushed.
  EXPECT_EQ(a->PollStatuses(a->send),
            (Statuses{{100, IBV_WC_WR_FLUSH_ERR}, {100, IBV_WC_WR_FLUSH_ERR}}));
  EXPECT_EQ(a->PollStatuses(a->receive), (Statuses{{200, IBV_WC_WR_FLUSH_ERR}}));
}

TEST_F(FakeVerbsTest, AnErrorFlushesAllBehindItInOrder) {
  Connect();
  ASSERT_EQ(a->PostReceives(2), 0);
  a->host.FailRequest("mlx5_0", a->qp->qp_num, 1, IBV_WC_REM_OP_ERR);
  ASSERT_EQ(a->Post(*b, {{.signalled = false},
                         {.signalled = false, .immediate = true},
                         {.signalled = false},
                         {.signalled = true}})
                .second,
            0);
  EXPECT_EQ(
      a->PollStatuses(a->send),
      (Statuses{{101, IBV_WC_REM_OP_ERR}, {102, IBV_WC_WR_FLUSH_ERR}, {103, IBV_WC_WR_FLUSH_ERR}}));
  EXPECT_EQ(a->PollStatuses(a->receive),
            (Statuses{{200, IBV_WC_WR_FLUSH_ERR}, {201, IBV_WC_WR_FLUSH_ERR}}));
}

TEST_F(FakeVerbsTest, OfAFailedCompletionLittleIsToBeRead) {
  Connect();
  a->host.FailRequest("mlx5_0", a->qp->qp_num, 0, IBV_WC_REM_OP_ERR);
  ASSERT_EQ(a->Post(*b, {{}}).second, 0);
  const ibv_wc done = a->Poll(a->send).at(0);
  EXPECT_EQ(done.qp_num, a->qp->qp_num);
  EXPECT_NE(done.vendor_err, 0u);
  EXPECT_NE(done.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_NE(done.imm_data, 0u);
}

struct KeyCase {
  const char* name;
  Program::Sent sent;
  unsigned access;  // Access of the destination.
  ibv_wc_status status;
};

constexpr unsigned kLocal = IBV_ACCESS_LOCAL_WRITE;
constexpr unsigned kBoth = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
const KeyCase kKeyCases[] = {
    {"within", {.size = 4096}, kBoth, IBV_WC_SUCCESS},
    {"the_source_ends_before", {.size = 2, .from = 4095}, kBoth, IBV_WC_LOC_PROT_ERR},
    {"the_destination_ends_before", {.size = 2, .to = 4095}, kBoth, IBV_WC_REM_ACCESS_ERR},
    {"an_unknown_local_key", {.local_key = 0xDEAD}, kBoth, IBV_WC_LOC_PROT_ERR},
    {"an_unknown_remote_key", {.remote_key = 0xDEAD}, kBoth, IBV_WC_REM_ACCESS_ERR},
    {"no_remote_access", {}, kLocal, IBV_WC_REM_ACCESS_ERR},
    {"nothing_needs_no_key", {.size = 0, .remote_key = 0xDEAD}, kBoth, IBV_WC_SUCCESS},
    {"inline_needs_no_local_key", {.is_inline = true, .local_key = 1}, kBoth, IBV_WC_SUCCESS},
};

class KeysTest : public FakeVerbsTest, public testing::WithParamInterface<KeyCase> {};

TEST_P(KeysTest, AreChecked) {
  Connect({.access = GetParam().access});
  ASSERT_EQ(a->Post(*b, {GetParam().sent}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{100, GetParam().status}}));
  ibv_async_event event;
  EXPECT_EQ(b->GetEvent(event), GetParam().status == IBV_WC_REM_ACCESS_ERR);
}

INSTANTIATE_TEST_SUITE_P(Writes, KeysTest, testing::ValuesIn(kKeyCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(FakeVerbsTest, AKeyOpensTheMemoryOfItsDomainAndOnlyWhileItIsRegistered) {
  Connect();
  ibv_pd* other = b->host.AllocPd(b->context);
  ibv_mr* of_other = b->host.RegMr(other, b->memory.data(), 4096, kBoth);
  ASSERT_EQ(a->Post(*b, {{.remote_key = of_other->rkey}}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{100, IBV_WC_REM_ACCESS_ERR}}));
  b->host.DeregMr(of_other);
  b->host.DeallocPd(other);
}

TEST_F(FakeVerbsTest, WhatIsDeregisteredIsNotReached) {
  Connect();
  const uint32_t key = b->mr->rkey;
  ASSERT_EQ(a->Post(*b, {{.remote_key = key}}).second, 0);
  b->host.DeregMr(std::exchange(b->mr, nullptr));
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{100, IBV_WC_REM_ACCESS_ERR}}));
}

TEST_F(FakeVerbsTest, RemoteKeysComeBackLastInFirstOutForTheSameSize) {
  Connect();
  const auto make = [&](size_t size) {
    return b->host.RegMr(b->pd, b->memory.data(), size, kBoth);
  };
  ibv_mr* const first = make(100);
  ibv_mr* const second = make(100);
  const uint32_t keys[] = {first->rkey, second->rkey};
  b->host.DeregMr(first);
  b->host.DeregMr(second);
  ibv_mr* const again[] = {make(101), make(100), make(100), make(100)};
  EXPECT_NE(again[0]->rkey, keys[1]);
  EXPECT_EQ(again[1]->rkey, keys[1]);
  EXPECT_EQ(again[2]->rkey, keys[0]);
  EXPECT_NE(again[3]->rkey, keys[1]);
  for (ibv_mr* mr : again) b->host.DeregMr(mr);
}

TEST_F(FakeVerbsTest, PacketsThatAreTooLongForAPathVanish) {
  Connect();
  network.DropLonger({"a", "mlx5_0"}, {"b", "mlx5_0"}, 100);
  ASSERT_EQ(a->Post(*b, {{.size = 100}, {.size = 101}}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send),
            (Statuses{{100, IBV_WC_SUCCESS}, {101, IBV_WC_RETRY_EXC_ERR}}));
}

TEST_F(FakeVerbsTest, AWriteThatFailsMayHaveLanded) {
  Connect();
  std::memset(a->memory.data(), 0x42, 16);
  a->host.FailRequest("mlx5_0", a->qp->qp_num, 0, IBV_WC_RETRY_EXC_ERR, /*landed=*/true);
  ASSERT_EQ(a->Post(*b, {{}}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{100, IBV_WC_RETRY_EXC_ERR}}));
  EXPECT_EQ(b->memory[15], std::byte{0x42});
}

TEST_F(FakeVerbsTest, AFullQueueTakesWhatStandsBefore) {
  Connect({.depth = 3});
  EXPECT_EQ(a->Post(*b, {{.signalled = false}, {.signalled = true}, {.signalled = false}, {}}),
            (std::pair<size_t, int>{3, ENOMEM}));
  network.Step();
  // Done, but nobody has polled: the slots are still in use.
  EXPECT_EQ(a->Post(*b, {{}}), (std::pair<size_t, int>{0, ENOMEM}));
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{101, IBV_WC_SUCCESS}}));
  // The third is not known to be done before a later one is.
  EXPECT_EQ(a->Post(*b, {{}, {}, {}}), (std::pair<size_t, int>{2, ENOMEM}));
}

TEST_F(FakeVerbsTest, APostIsRefusedWhereTheScriptSays) {
  Connect();
  a->host.RefusePost("mlx5_0", a->qp->qp_num, 2, ENOMEM);
  EXPECT_EQ(a->Post(*b, {{}, {}, {}}), (std::pair<size_t, int>{2, ENOMEM}));
  EXPECT_EQ(a->Post(*b, {{}, {}, {}}), (std::pair<size_t, int>{3, 0}));
}

TEST_F(FakeVerbsTest, WhatIsTooLongIsRefusedOrFails) {
  Connect({}, {.ports = {{.max_message_bytes = 1000}}});
  EXPECT_EQ(a->Post(*b, {{.size = 65, .is_inline = true}}).second, EINVAL);
  EXPECT_EQ(a->Post(*b, {{.size = 1001}}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{100, IBV_WC_LOC_LEN_ERR}}));
  ibv_qp_init_attr attributes{};
  attributes.send_cq = a->send;
  attributes.recv_cq = a->receive;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {1, 1, 1, 1, 4096};
  EXPECT_EQ(a->host.CreateQp(a->pd, &attributes), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(FakeVerbsTest, APathThatIsCutExhaustsRetriesAndNobodyIsTold) {
  Connect();
  network.Cut({"a", "mlx5_0"}, {"b", "mlx5_0"});
  ASSERT_EQ(a->Post(*b, {{}, {}}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send),
            (Statuses{{100, IBV_WC_RETRY_EXC_ERR}, {101, IBV_WC_WR_FLUSH_ERR}}));
  EXPECT_TRUE(b->Poll(b->receive).empty());
  EXPECT_FALSE(IsReadable(a->context->async_fd));
}

TEST(FakeNetworkTest, APathThatHealsInTimeLosesNothing) {
  FakeNetwork network({.patience = 5});
  Program a(network, "a", {}, {});
  Program b(network, "b", {}, {});
  for (auto* p : {&a, &b}) ASSERT_EQ(p->ToInit(), 0);
  ASSERT_EQ(a.ToReceive(b), 0);
  ASSERT_EQ(b.ToReceive(a), 0);
  for (auto* p : {&a, &b}) ASSERT_EQ(p->ToSend(), 0);
  network.Cut({"a", "mlx5_0"}, {"b", "mlx5_0"});
  ASSERT_EQ(a.Post(b, {{}}).second, 0);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(a.Poll(a.send).empty());
  network.Heal({"b", "mlx5_0"}, {"a", "mlx5_0"});
  EXPECT_EQ(a.PollStatuses(a.send), (Statuses{{100, IBV_WC_SUCCESS}}));
}

TEST_F(FakeVerbsTest, AQueuePairThatIsGoneDoesNotAnswerNorDoesItsNumbersNextOwner) {
  const DeviceOptions reusing{.reuses_queue_pair_numbers = true};
  Connect({}, reusing);
  const uint32_t number = b->qp->qp_num;
  ASSERT_EQ(b->host.DestroyQp(b->qp), 0);
  ibv_qp_init_attr attributes{};
  attributes.send_cq = b->send;
  attributes.recv_cq = b->receive;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {8, 4, 1, 1, 64};
  b->qp = b->host.CreateQp(b->pd, &attributes);
  EXPECT_EQ(b->qp->qp_num, number);
  ASSERT_EQ(b->ToInit(), 0);
  ASSERT_EQ(a->Post(*b, {{}}).second, 0);
  EXPECT_EQ(a->PollStatuses(a->send), (Statuses{{100, IBV_WC_RETRY_EXC_ERR}}));
}

TEST_F(FakeVerbsTest, AQueueWithoutRoomDiesAndTells) {
  Connect({.entries = 2});
  ASSERT_EQ(a->Post(*b, {{}, {}, {}}).second, 0);
  EXPECT_TRUE(a->Poll(a->send).empty());
  ibv_async_event event;
  ASSERT_TRUE(a->GetEvent(event));
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, a->send);
  EXPECT_FALSE(a->GetEvent(event));
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(a->qp->state, IBV_QPS_ERR);
}

TEST_F(FakeVerbsTest, AnArmedQueueTellsOnce) {
  Connect();
  ibv_cq* cq = nullptr;
  ASSERT_EQ(a->host.ReqNotifyCq(a->send), 0);
  EXPECT_EQ(a->host.GetCqEvent(a->channel, &cq), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(a->Post(*b, {{}, {}}).second, 0);
  network.Step();
  EXPECT_TRUE(IsReadable(a->channel->fd));
  ASSERT_EQ(a->host.GetCqEvent(a->channel, &cq), 0);
  EXPECT_EQ(cq, a->send);
  EXPECT_FALSE(IsReadable(a->channel->fd));
  // Completions from before it is armed again cause no event.
  ASSERT_EQ(a->host.ReqNotifyCq(a->send), 0);
  EXPECT_FALSE(IsReadable(a->channel->fd));
  a->host.AckCqEvents(cq, 1);
}

TEST_F(FakeVerbsTest, CompletionsOutliveTheirQueuePairOnlyWhereTheDeviceIsSo) {
  for (const bool outlive : {false, true}) {
    FakeNetwork other;
    Program lone(other, "a", {.completions_outlive_queue_pairs = outlive}, {});
    ASSERT_EQ(lone.ToInit(), 0);
    ASSERT_EQ(lone.PostReceives(3), 0);
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_ERR;
    ASSERT_EQ(lone.host.ModifyQp(lone.qp, &to, IBV_QP_STATE), 0);
    lone.host.DestroyQp(std::exchange(lone.qp, nullptr));
    EXPECT_EQ(lone.Poll(lone.receive).size(), outlive ? 3u : 0u);
  }
}

TEST_F(FakeVerbsTest, PortsTellWhenTheyGoAndComeBack) {
  Connect();
  a->host.SetPort("mlx5_0", 1, false);
  ibv_port_attr port;
  ASSERT_EQ(a->host.QueryPort(a->context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  a->host.SetPort("mlx5_0", 1, true);
  ibv_async_event event;
  ASSERT_TRUE(a->GetEvent(event));
  EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(event.element.port_num, 1);
  ASSERT_TRUE(a->GetEvent(event));
  EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ACTIVE);
}

TEST_F(FakeVerbsTest, OnADeadDeviceNothingCompletesAndNothingIsMade) {
  Connect();
  ASSERT_EQ(a->Post(*b, {{}}).second, 0);
  a->host.FailDevice("mlx5_0");
  EXPECT_TRUE(a->Poll(a->send).empty());
  EXPECT_EQ(a->Post(*b, {{}}).second, EIO);
  EXPECT_EQ(a->host.RegMr(a->pd, a->memory.data(), 1, kBoth), nullptr);
  ibv_async_event event;
  ASSERT_TRUE(a->GetEvent(event));
  EXPECT_EQ(event.event_type, IBV_EVENT_DEVICE_FATAL);
}

TEST_F(FakeVerbsTest, RegistrationsFailByScript) {
  Start();
  const auto fails = [&](uint64_t size) {
    ibv_mr* mr = a->host.RegMr(a->pd, a->memory.data(), size, kBoth);
    if (mr != nullptr) a->host.DeregMr(mr);
    return mr == nullptr ? errno : 0;
  };
  a->host.FailRegistrations("mlx5_0", {.above_bytes = 1000});
  EXPECT_EQ(fails(1000), 0);
  EXPECT_EQ(fails(1001), ENOMEM);
  a->host.FailRegistrations("mlx5_0", {.error = EFAULT, .first = 1, .count = 1});
  EXPECT_EQ(fails(1), 0);
  EXPECT_EQ(fails(1), EFAULT);
  EXPECT_EQ(fails(1), 0);
}

TEST_F(FakeVerbsTest, MisuseIsFound) {
  Start();
  EXPECT_EQ(a->host.DestroyCq(a->send), EBUSY);
  EXPECT_EQ(a->host.DeallocPd(a->pd), EBUSY);
  ibv_mr* mr = std::exchange(a->mr, nullptr);
  a->host.DeregMr(mr);
  EXPECT_EQ(a->host.DeregMr(mr), EINVAL);
  EXPECT_EQ(network.Leaks().size(), 2u);
  EXPECT_EQ(
      network.TakeMisuses(),
      (std::vector<std::string>{"ibv_destroy_cq: it is in use", "ibv_dealloc_pd: it is in use",
                                "ibv_dereg_mr: its object is not alive"}));
}

}  // namespace
}  // namespace waybill::fake_verbs
