// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/read_back.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/fabric/verbs/lane_address.h"
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

// Host b receives by two NICs, in memory that stands for a GPU's.
class ReadBackTest : public testing::Test {
 protected:
  ReadBackTest() {
    for (FakeHost* host : {&network.Host("a"), &host_b}) {
      for (const char* name : {"mlx5_0", "mlx5_1"}) host->AddDevice(name);
    }
    a = &endpoints.Join("a");
    b = &endpoints.Join("b");
    region = *b->fabric().Register({.kind = MemoryKind::kDevice,
                                    .data = memory.data(),
                                    .size_bytes = memory.size(),
                                    .needs_read_back = true},
                                   "memory");
    for (const char* nic : {"mlx5_0", "mlx5_1"}) lanes.push_back(Connect(nic));
    endpoints.UntilQuiet();
    // The first one reads behind the writes by which the lanes were proved.
    for (const Lane& lane : lanes) EXPECT_TRUE(b->fabric().ReadBack(lane.at_b).ok());
    before = Reads();
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

  // Posts on a lane and waits for the immediate.
  void Write(const Lane& lane) {
    const Reached to = endpoints.GrantToA(lane, region);
    const Region from = endpoints.SourceAtA(lane, 16);
    const size_t arrived = b->Immediates(lane.at_b).size();
    ASSERT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 16}}, 7));
    ASSERT_TRUE(endpoints.Until([&] { return b->Immediates(lane.at_b).size() > arrived; }));
  }

  absl::Status ReadBackOn(const Lane& lane) { return b->fabric().ReadBack(lane.at_b); }

  using Pair = std::pair<uint64_t, uint64_t>;
  Pair Reads() { return {host_b.counts("mlx5_0").reads, host_b.counts("mlx5_1").reads}; }
  // Returns the reads of both NICs since the test began.
  Pair NewReads() { return {Reads().first - before.first, Reads().second - before.second}; }

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
  Pair before;
};

TEST_F(ReadBackTest, TheNicOfALaneReadsOnceAfterSomethingHasArrived) {
  Write(lanes[1]);
  ASSERT_TRUE(ReadBackOn(lanes[0]).ok());
  EXPECT_EQ(NewReads(), (Pair{0, 0}));
  ASSERT_TRUE(ReadBackOn(lanes[1]).ok());
  EXPECT_EQ(NewReads(), (Pair{0, 1}));
  ASSERT_TRUE(ReadBackOn(lanes[1]).ok());
  EXPECT_EQ(NewReads(), (Pair{0, 1}));
  Write(lanes[0]);
  Write(lanes[0]);
  ASSERT_TRUE(ReadBackOn(lanes[0]).ok());
  EXPECT_EQ(NewReads(), (Pair{1, 1}));
}

TEST_F(ReadBackTest, OneReadServesAllLanesOfANic) {
  const Lane other = Connect("mlx5_0");
  Write(lanes[0]);
  Write(other);
  ASSERT_TRUE(ReadBackOn(lanes[0]).ok());
  ASSERT_TRUE(ReadBackOn(other).ok());
  EXPECT_EQ(NewReads(), (Pair{1, 0}));
}

TEST_F(ReadBackTest, MemoryThatIsRegisteredInBothWaysIsReadInBoth) {
  std::vector<std::byte> exported(1 << 14);
  const UniqueFd dmabuf(memfd_create("a GPU's", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(dmabuf.get(), 1 << 15), 0);
  ASSERT_TRUE(
      b->fabric()
          .Register({.kind = MemoryKind::kDevice,
                     .data = exported.data(),
                     .size_bytes = exported.size(),
                     .dmabuf_fd = dmabuf.get(),
                     .dmabuf_offset_bytes = reinterpret_cast<uintptr_t>(exported.data()) % 4096,
                     .needs_read_back = true},
                    "by a dma-buf")
          .ok());
  Write(lanes[0]);
  ASSERT_TRUE(ReadBackOn(lanes[0]).ok());
  EXPECT_EQ(NewReads(), (Pair{2, 0}));
}

TEST_F(ReadBackTest, MemoryThatNeedsNoneIsNotRead) {
  ASSERT_TRUE(b->fabric().Release(region.id).ok());
  region = *b->fabric().Register(
      {.kind = MemoryKind::kDevice, .data = memory.data(), .size_bytes = memory.size()}, "memory");
  Write(lanes[0]);
  EXPECT_TRUE(ReadBackOn(lanes[0]).ok());
  EXPECT_EQ(NewReads(), (Pair{0, 0}));
}

TEST_F(ReadBackTest, ALaneThatHasFailedIsReadBackUntilItIsClosed) {
  Write(lanes[0]);
  a->Destroy();
  ASSERT_TRUE(endpoints.Until([&] { return b->HasFailed(lanes[0].at_b); }));
  EXPECT_TRUE(ReadBackOn(lanes[0]).ok());
  EXPECT_EQ(NewReads(), (Pair{1, 0}));
  ASSERT_TRUE(b->fabric().CloseLane(lanes[0].at_b).ok());
  EXPECT_EQ(ReadBackOn(lanes[0]).code(), absl::StatusCode::kNotFound);
}

TEST_F(ReadBackTest, ANicThatFailsToReadSaysSoAndBeginsAnew) {
  // The reader was made first, when the memory was registered.
  const uint32_t reader = host_b.queue_pairs("mlx5_0").front();
  ASSERT_EQ(host_b.access("mlx5_0", reader), unsigned{IBV_ACCESS_REMOTE_READ});
  host_b.FailRequest("mlx5_0", reader, 0);
  Write(lanes[0]);
  EXPECT_EQ(ReadBackOn(lanes[0]),
            absl::UnavailableError("read back what mlx5_0 has written: transport retry counter "
                                   "exceeded (status 12)"));
  EXPECT_TRUE(ReadBackOn(lanes[0]).ok());
  EXPECT_EQ(NewReads(), (Pair{2, 0}));
}

TEST_F(ReadBackTest, ANicThatDiesTakesNothingOfTheOthers) {
  Write(lanes[0]);
  Write(lanes[1]);
  host_b.FailDevice("mlx5_0");
  endpoints.UntilQuiet();
  EXPECT_EQ(ReadBackOn(lanes[0]),
            absl::UnavailableError("read back what mlx5_0 has written: the device has failed"));
  EXPECT_TRUE(ReadBackOn(lanes[1]).ok());
  EXPECT_EQ(NewReads(), (Pair{0, 1}));
}

TEST_F(ReadBackTest, LanesLetPeersWriteAndNothingElse) {
  const uint32_t number = ParseLaneAddress(*b->fabric().LaneAddress(lanes[0].at_b))->queue_pair;
  EXPECT_EQ(host_b.access("mlx5_0", number), unsigned{IBV_ACCESS_REMOTE_WRITE});
}

class OneNicTest : public testing::Test {
 protected:
  void Open(const fake_verbs::DeviceOptions& options) {
    host.AddDevice("mlx5_0", options);
    ibv_device** list = host.GetDeviceList(nullptr);
    device = *Device::Open(&host, list[0]);
    host.FreeDeviceList(list);
    nic.emplace(&host, device.get(), 1);
    ASSERT_TRUE(nic->Refresh(std::nullopt).ok());
  }

  FakeNetwork network{{.patience = ~0u}};
  FakeHost& host = network.Host("a");
  std::unique_ptr<Device> device;
  std::optional<Nic> nic;
};

TEST_F(OneNicTest, ASilentNicIsGivenUpAtTheDeadline) {
  Open({});
  network.Cut({"a", "mlx5_0"}, {"a", "mlx5_0"});
  const auto read_back = *ReadBack::Create(&host, &*nic);
  EXPECT_EQ(read_back->Read(0, 0, absl::InfinitePast()),
            absl::DeadlineExceededError("it does not answer"));
}

TEST_F(OneNicTest, WhatItHasNoRoomForIsNamed) {
  Open({.max_queue_pairs = 0});
  const absl::Status status = ReadBack::Create(&host, &*nic).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(
      status.message(),
      "ibv_create_qp of mlx5_0 for reading back: Cannot allocate memory (errno 12); "))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "at most 0 queue pairs")) << status;
  host.FailRegistrations("mlx5_0", {.error = ENOMEM});
  EXPECT_EQ(ReadBack::Create(&host, &*nic).status(),
            absl::ResourceExhaustedError(
                "ibv_reg_mr of mlx5_0 for reading back: Cannot allocate memory"));
}

TEST_F(OneNicTest, WithoutRoomForItMemoryIsRefusedWhenItIsRegistered) {
  Open({.max_queue_pairs = 0});
  nic.reset();
  device.reset();
  const auto fabric = *MakeVerbsFabric({.library = &host});
  std::byte byte{};
  EXPECT_EQ(fabric
                ->Register({.kind = MemoryKind::kDevice,
                            .data = &byte,
                            .size_bytes = 1,
                            .needs_read_back = true},
                           "memory")
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace waybill::verbs
