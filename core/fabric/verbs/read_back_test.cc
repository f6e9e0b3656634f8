#include "core/fabric/verbs/read_back.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/endpoints.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill::verbs {
namespace {

using fake_verbs::FakeHost;
using fake_verbs::FakeNetwork;
using testing_fabric::Endpoint;
using testing_fabric::Endpoints;
using testing_fabric::Lane;
using testing_fabric::Reached;

// Host b receives by two NICs, in memory that stands for a device's.
class ReadBackTest : public testing::Test {
 protected:
  ReadBackTest() {
    for (FakeHost* host : {&network.Host("a"), &host_b}) {
      for (const char* name : {"mlx5_0", "mlx5_1"}) host->AddDevice(name);
    }
    a = &endpoints.Join("a");
    b = &endpoints.Join("b");
    lanes = {Connect("mlx5_0"), Connect("mlx5_1")};
    region = *b->fabric().Register({MemoryKind::kDevice, memory.data(), memory.size()}, "memory");
    endpoints.UntilQuiet();
  }

  Lane Connect(const char* nic) {
    const Lane lane{a, b, *a->fabric().OpenLane("b", nic), *b->fabric().OpenLane("a", nic)};
    EXPECT_TRUE(a->fabric().ConnectLane(lane.at_a, *b->fabric().LaneAddress(lane.at_b)).ok());
    EXPECT_TRUE(b->fabric().ConnectLane(lane.at_b, *a->fabric().LaneAddress(lane.at_a)).ok());
    EXPECT_TRUE(endpoints.Until([&] {
      return a->Count(FabricEvent::Kind::kConnected, lane.at_a) > 0 &&
             b->Count(FabricEvent::Kind::kConnected, lane.at_b) > 0;
    }));
    return lane;
  }

  // A post by a NIC, up to its immediate's arrival.
  void Write(size_t nic) {
    const Lane& lane = lanes[nic];
    const Reached to = endpoints.GrantToA(lane, region);
    const Region from = endpoints.SourceAtA(lane, 16);
    const size_t before = b->Immediates(lane.at_b).size();
    ASSERT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 16}}, 7));
    ASSERT_TRUE(endpoints.Until([&] { return b->Immediates(lane.at_b).size() > before; }));
  }

  std::pair<uint64_t, uint64_t> Reads() {
    return {host_b.counts("mlx5_0").reads, host_b.counts("mlx5_1").reads};
  }

  FakeNetwork network;
  FakeHost& host_b = network.Host("b");
  Endpoints endpoints{[this](const std::string& name) {
    return *MakeVerbsFabric({.library = &network.Host(name)});
  }};
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  Endpoint* a = nullptr;
  Endpoint* b = nullptr;
  std::vector<Lane> lanes;
  Region region;
};

using Pair = std::pair<uint64_t, uint64_t>;

TEST_F(ReadBackTest, EachNicReadsOnceAfterItHasWritten) {
  ASSERT_TRUE(b->fabric().ReadBack(region.id).ok());
  EXPECT_EQ(Reads(), (Pair{0, 0}));
  Write(1);
  ASSERT_TRUE(b->fabric().ReadBack(region.id).ok());
  EXPECT_EQ(Reads(), (Pair{0, 1}));
  ASSERT_TRUE(b->fabric().ReadBack(region.id).ok());
  EXPECT_EQ(Reads(), (Pair{0, 1}));
  Write(0);
  Write(0);
  Write(1);
  ASSERT_TRUE(b->fabric().ReadBack(region.id).ok());
  EXPECT_EQ(Reads(), (Pair{1, 2}));
}

TEST_F(ReadBackTest, ANicThatCannotReadIsAnErrorOnceAndThenStartsAnew) {
  Write(0);
  const std::vector<uint32_t> lanes_only = host_b.queue_pairs("mlx5_0");
  ASSERT_TRUE(b->fabric().ReadBack(region.id).ok());
  const std::vector<uint32_t> all = host_b.queue_pairs("mlx5_0");
  ASSERT_EQ(all.size(), lanes_only.size() + 1);
  host_b.FailRequest("mlx5_0", all.back(), 0, IBV_WC_RETRY_EXC_ERR);
  Write(0);
  const absl::Status status = b->fabric().ReadBack(region.id);
  EXPECT_EQ(status, absl::UnavailableError("read back what mlx5_0 has written: transport retry "
                                           "counter exceeded (status 12)"));
  EXPECT_EQ(host_b.queue_pairs("mlx5_0"), lanes_only);
  Write(0);
  EXPECT_TRUE(b->fabric().ReadBack(region.id).ok());
  EXPECT_EQ(Reads(), (Pair{3, 0}));
}

TEST_F(ReadBackTest, WhatADeadNicHasWrittenIsNotTrusted) {
  Write(0);
  Write(1);
  host_b.FailDevice("mlx5_0");
  endpoints.UntilQuiet();
  const absl::Status status = b->fabric().ReadBack(region.id);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StartsWith(status.message(), "read back what mlx5_0 has written: ")) << status;
  // It is given up; the other one goes on.
  Write(1);
  EXPECT_TRUE(b->fabric().ReadBack(region.id).ok());
  EXPECT_EQ(Reads(), (Pair{0, 1}));
}

// A NIC that never answers a read: the path to itself is cut.
TEST(SilentNicTest, IsGivenUpAtTheDeadline) {
  FakeNetwork network({.patience = ~0u});
  FakeHost& host = network.Host("a");
  host.AddDevice("mlx5_0");
  network.Cut({"a", "mlx5_0"}, {"a", "mlx5_0"});
  ibv_device** list = host.GetDeviceList(nullptr);
  const auto device = *Device::Open(&host, list[0]);
  host.FreeDeviceList(list);
  Nic nic(&host, device.get(), 1, "mlx5_0");
  ASSERT_TRUE(nic.Refresh(std::nullopt).ok());
  const auto read_back = *ReadBack::Create(&host, &nic);
  std::byte byte{};
  EXPECT_EQ(read_back->Read(&byte, 0, absl::InfinitePast()),
            absl::DeadlineExceededError("read back what mlx5_0 has written: it does not answer"));
}

TEST(NicWithoutRoomTest, SaysWhatItHasNone) {
  FakeNetwork network;
  FakeHost& host = network.Host("a");
  host.AddDevice("mlx5_0", {.max_queue_pairs = 0});
  ibv_device** list = host.GetDeviceList(nullptr);
  const auto device = *Device::Open(&host, list[0]);
  host.FreeDeviceList(list);
  Nic nic(&host, device.get(), 1, "mlx5_0");
  ASSERT_TRUE(nic.Refresh(std::nullopt).ok());
  EXPECT_EQ(ReadBack::Create(&host, &nic).status().code(), absl::StatusCode::kResourceExhausted);
  host.FailRegistrations("mlx5_0", {.error = ENOMEM});
  EXPECT_EQ(ReadBack::Create(&host, &nic).status(),
            absl::ResourceExhaustedError("read back what mlx5_0 has written: ibv_reg_mr: Cannot "
                                         "allocate memory"));
}

}  // namespace
}  // namespace waybill::verbs
