// SPDX-License-Identifier: Apache-2.0

// Which NICs a verbs fabric uses, and what it says where there is none.
#include "core/fabric/verbs/verbs_fabric.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/fabric/verbs/lane_address.h"
#include "testing/fabric_conformance/endpoints.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill {
namespace {

using fake_verbs::FakeNetwork;
using testing_fabric::Endpoint;
using testing_fabric::Endpoints;
using testing_fabric::Lane;
using testing_fabric::Reached;

absl::Status StatusOfMaking(FakeNetwork& network, VerbsOptions options = {}) {
  options.library = &network.Host("a");
  return MakeVerbsFabric(options).status();
}

std::string NicOf(Fabric& fabric, LaneId lane) {
  return verbs::ParseLaneAddress(*fabric.LaneAddress(lane))->nic;
}

uint64_t CountOf(const Fabric& fabric, absl::string_view name) {
  for (const FabricCount& count : fabric.Counts()) {
    if (count.name == name) return count.value;
  }
  ADD_FAILURE() << "there is no count " << name;
  return 0;
}

TEST(VerbsFabricTest, AHostWithoutDevicesIsTold) {
  FakeNetwork network;
  EXPECT_EQ(
      StatusOfMaking(network),
      absl::UnavailableError("RDMA is not available: this host has no RDMA device "
                             "(/sys/class/infiniband is empty); is the NIC's driver loaded?"));
}

TEST(VerbsFabricTest, AHostWithoutAnActivePortIsToldWithWhatEachLacks) {
  FakeNetwork network;
  network.Host("a").AddDevice("mlx5_0", {.ports = {{.active = false}}});
  network.Host("a").AddDevice("mlx5_1", {.ports = {{.gids = std::vector<fake_verbs::GidRow>()}}});
  network.Host("a").AddDevice("mlx5_2");
  network.Host("a").FailDevice("mlx5_2");
  const absl::Status status = StatusOfMaking(network);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  for (const char* part :
       {"no port is usable", "port 1 of mlx5_0 is not active: is its network",
        "port 1 of mlx5_1: the port has no GID", "ibv_open_device of RDMA device mlx5_2"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << " in " << status;
  }
}

TEST(VerbsFabricTest, ANicThatIsNamedHasToBeThere) {
  FakeNetwork network;
  network.Host("a").AddDevice("mlx5_0");
  network.Host("a").AddDevice("mlx5_1", {.ports = {{.active = false}}});
  absl::Status status = StatusOfMaking(network, {.nics = {"mlx5_0", "mlx5_9"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(status.message(), "no usable RDMA NIC \"mlx5_9\"")) << status;
  status = StatusOfMaking(network, {.nics = {"mlx5_1"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(status.message(), "port 1 of mlx5_1 is not active")) << status;
}

TEST(VerbsFabricTest, TheOrderOfTheNamesNumbersTheRails) {
  FakeNetwork network;
  network.Host("a").AddDevice("mlx5_0", {.ports = {{}, {.speed = 128}}});
  network.Host("a").AddDevice("mlx5_1");
  std::vector<std::string> log;
  VerbsOptions options{.nics = {"mlx5_1", "mlx5_0:2"},
                       .log = [&](absl::string_view line) { log.emplace_back(line); },
                       .library = &network.Host("a")};
  const auto fabric = *MakeVerbsFabric(options);
  const std::vector<FabricNic> nics = fabric->Nics();
  ASSERT_EQ(nics.size(), 2u);
  EXPECT_EQ(nics[0].name, "mlx5_1");
  EXPECT_EQ(nics[0].rail, 0u);
  EXPECT_EQ(nics[0].bytes_per_second, 12'500'000'000u);
  EXPECT_EQ(nics[1].name, "mlx5_0:2");
  EXPECT_EQ(nics[1].rail, 1u);
  EXPECT_EQ(nics[1].bytes_per_second, 50'000'000'000u);
  ASSERT_EQ(log.size(), 2u);
  EXPECT_TRUE(absl::StrContains(log[1], "mlx5_0 port 2, RoCE v2 10.0.")) << log[1];
}

TEST(VerbsFabricTest, RailsFollowTheNamesOfAllPortsWhateverTheListHasAndWhicheverAreDown) {
  FakeNetwork network;
  fake_verbs::FakeHost& host = network.Host("a");
  host.AddDevice("mlx5_10");
  host.AddDevice("mlx5_2", {.ports = {{.active = false}, {}}});
  host.AddDevice("efa_0", {.reliable_connections = false});
  host.AddDevice("mlx5_1", {.ports = {{.gids = std::vector<fake_verbs::GidRow>()}}});
  host.AddDevice("mlx5_3");
  host.AddDevice("mlx5_0");
  host.FailDevice("mlx5_3");
  const auto fabric = *MakeVerbsFabric({.library = &host});
  std::map<std::string, uint32_t> rails;
  for (const FabricNic& nic : fabric->Nics()) rails[nic.name] = nic.rail;
  EXPECT_EQ(rails,
            (std::map<std::string, uint32_t>{{"mlx5_0", 1}, {"mlx5_2:2", 4}, {"mlx5_10", 6}}));
}

TEST(VerbsFabricTest, EachNamedNicMayHaveAGidIndexOfItsOwn) {
  FakeNetwork network;
  for (const char* name : {"mlx5_0", "mlx5_1", "mlx5_2"}) network.Host("a").AddDevice(name);
  std::vector<std::string> log;
  const auto fabric =
      *MakeVerbsFabric({.nics = {"mlx5_1=1", "mlx5_0=0", "mlx5_2"},
                        .gid_index = 2,
                        .log = [&](absl::string_view line) { log.emplace_back(line); },
                        .library = &network.Host("a")});
  ASSERT_EQ(log.size(), 3u);
  EXPECT_TRUE(absl::StrContains(log[0], "mlx5_1 port 1, RoCE v2 fe80:")) << log[0];
  EXPECT_TRUE(absl::StrContains(log[1], "mlx5_0 port 1, RoCE v1 fe80:")) << log[1];
  EXPECT_TRUE(absl::StrContains(log[2], "mlx5_2 port 1, RoCE v1 10.0.")) << log[2];
  for (const char* bad : {"mlx5_0=", "mlx5_0=x", "mlx5_0=-1"}) {
    EXPECT_EQ(
        StatusOfMaking(network, {.nics = {bad}}),
        absl::InvalidArgumentError(absl::StrCat(
            "RDMA NIC \"", bad, "\": behind = there is no GID index; an example is mlx5_0=3")));
  }
}

TEST(VerbsFabricTest, ADeviceThatCannotCarryLanesIsToldAndRegistersNothing) {
  FakeNetwork network;
  fake_verbs::FakeHost& host = network.Host("a");
  host.AddDevice("efa_0", {.reliable_connections = false});
  host.AddDevice("irdma0", {.transport = IBV_TRANSPORT_IWARP});
  host.AddDevice("mlx5_0", {.ports = {{.infiniband = true, .partition_key = 0x7FFF}}});
  const absl::Status status = StatusOfMaking(network);
  EXPECT_EQ(
      status.message(),
      "RDMA is not available: no port is usable: ibv_create_qp of RDMA device efa_0: "
      "Operation not supported (errno 95); it has no reliable connections (as EFA), and lanes "
      "need InfiniBand or RoCE; irdma0 is an iWARP device: lanes need InfiniBand or RoCE; if "
      "it has a RoCE mode (E810: devlink parameter enable_roce), turn it on; port 1 of mlx5_0 "
      "is a limited member of its partition (7fff at index 0), and limited members do not "
      "reach each other: the subnet manager has to make it a full member");
  host.AddDevice("mlx5_1");
  const auto fabric = *MakeVerbsFabric({.library = &host});
  EXPECT_EQ(host.counts("efa_0").contexts + host.counts("irdma0").contexts, 0u);
  EXPECT_EQ(fabric->Nics().size(), 1u);
}

TEST(VerbsFabricTest, ADeviceMayHave255Ports) {
  FakeNetwork network;
  std::vector<fake_verbs::PortOptions> ports(255, {.active = false});
  ports.back().active = true;
  network.Host("a").AddDevice("mlx5_0", {.ports = ports});
  const auto fabric = *MakeVerbsFabric({.library = &network.Host("a")});
  ASSERT_EQ(fabric->Nics().size(), 1u);
  EXPECT_EQ(fabric->Nics()[0].name, "mlx5_0:255");
}

TEST(VerbsFabricTest, WhichPortsAreUsedCanBeChosenAmongThoseThatAreActive) {
  FakeNetwork network;
  network.Host("a").AddDevice("mlx5_0");
  network.Host("a").AddDevice("mlx5_1", {.ports = {{.active = false}}});
  network.Host("a").AddDevice("mlx5_2", {.ports = {{}, {}}});
  network.Host("a").AddDevice("mlx5_3");
  std::vector<std::string> offered;
  VerbsOptions options{.choose =
                           [&](const std::vector<std::string>& active) {
                             offered = active;
                             return ChosenNics{{"mlx5_3", "mlx5_2:2"}, "nearest to a GPU"};
                           },
                       .library = &network.Host("a")};
  const auto fabric = *MakeVerbsFabric(options);
  EXPECT_EQ(offered, (std::vector<std::string>{"mlx5_0", "mlx5_2", "mlx5_2:2", "mlx5_3"}));
  const std::vector<FabricNic> nics = fabric->Nics();
  ASSERT_EQ(nics.size(), 2u);
  EXPECT_EQ(nics[0].name, "mlx5_2:2");
  EXPECT_EQ(nics[0].rail, 3u);
  EXPECT_EQ(nics[1].name, "mlx5_3");
  EXPECT_EQ(nics[1].rail, 4u);
  ASSERT_TRUE(fabric->Allocate(100, "memory").ok());
  EXPECT_EQ(network.Host("a").counts("mlx5_0").contexts, 0u);
  EXPECT_EQ(network.Host("a").counts("mlx5_2").registrations, 1u);
  EXPECT_EQ(network.Host("a").counts("mlx5_3").registrations, 1u);
  const LaneId lane = *fabric->OpenLane("b", "mlx5_3");
  EXPECT_TRUE(absl::EndsWith(fabric->DescribeLane(lane), "to nobody yet; nearest to a GPU"))
      << fabric->DescribeLane(lane);
  // Those that are named are not asked about.
  options.nics = {"mlx5_0"};
  EXPECT_EQ((*MakeVerbsFabric(options))->Nics()[0].name, "mlx5_0");
}

TEST(VerbsFabricTest, PortsThatAreNotActiveAreLeftOutWhereNoneIsNamed) {
  FakeNetwork network;
  network.Host("a").AddDevice("mlx5_0", {.ports = {{.active = false}, {}}});
  network.Host("a").AddDevice("mlx5_1", {.ports = {{.active = false}}});
  const auto fabric = *MakeVerbsFabric({.library = &network.Host("a")});
  ASSERT_EQ(fabric->Nics().size(), 1u);
  EXPECT_EQ(fabric->Nics()[0].name, "mlx5_0:2");
  // Memory is registered with no device in vain.
  ASSERT_TRUE(fabric->Allocate(100, "memory").ok());
  EXPECT_EQ(network.Host("a").counts("mlx5_0").registrations, 1u);
  EXPECT_EQ(network.Host("a").counts("mlx5_1").registrations, 0u);
  EXPECT_EQ(network.Host("a").counts("mlx5_1").contexts, 0u);
}

TEST(VerbsFabricTest, LanesGoWhereTheFewestAreOrWhereTheyAreTold) {
  FakeNetwork network;
  for (const char* name : {"mlx5_0", "mlx5_1", "mlx5_2"}) network.Host("a").AddDevice(name);
  const auto fabric = *MakeVerbsFabric({.library = &network.Host("a")});
  std::map<std::string, int> lanes;
  std::vector<LaneId> open;
  for (int i = 0; i < 6; ++i) {
    open.push_back(*fabric->OpenLane("b", ""));
    ++lanes[NicOf(*fabric, open.back())];
  }
  EXPECT_EQ(lanes, (std::map<std::string, int>{{"mlx5_0", 2}, {"mlx5_1", 2}, {"mlx5_2", 2}}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(NicOf(*fabric, *fabric->OpenLane("b", "mlx5_1")), "mlx5_1");
  }
  ASSERT_TRUE(fabric->CloseLane(open[2]).ok());
  EXPECT_EQ(NicOf(*fabric, *fabric->OpenLane("b", "")), NicOf(*fabric, open[5]));
  const absl::Status status = fabric->OpenLane("b", "mlx5_7").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "no RDMA NIC \"mlx5_7\"")) << status;
}

TEST(VerbsFabricTest, EveryNicOfOneEndReachesTheOneOfTheOther) {
  FakeNetwork network;
  for (const char* name : {"mlx5_0", "mlx5_1"}) network.Host("a").AddDevice(name);
  network.Host("b").AddDevice("mlx5_0");
  Endpoints endpoints(
      [&](const std::string& name) { return *MakeVerbsFabric({.library = &network.Host(name)}); });
  Endpoint& a = endpoints.Join("a");
  Endpoint& b = endpoints.Join("b");
  for (int i = 0; i < 2; ++i) {
    const Lane lane = endpoints.Connect(a, b);
    EXPECT_TRUE(absl::StrContains(a.fabric().DescribeLane(lane.at_a),
                                  i == 0 ? "verbs: mlx5_0 (10.0." : "verbs: mlx5_1 (10.0."));
    const Region from = endpoints.SourceAtA(lane, 100, 5);
    const Reached to = endpoints.AllocateAtB(lane, 100);
    EXPECT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 100}}));
    EXPECT_EQ(to.region.memory.data[99], testing_fabric::ByteAt(99, 5));
    // And back.
    const Lane back{&b, &a, lane.at_b, lane.at_a};
    const Reached at_a = endpoints.AllocateAtB(back, 100);
    EXPECT_TRUE(endpoints.PostAndComplete(back, {{to.region.id, 0, at_a.remote, 0, 100}}));
    EXPECT_EQ(at_a.region.memory.data[99], testing_fabric::ByteAt(99, 5));
  }
}

TEST(VerbsFabricTest, InfiniBandIsReachedByItsLid) {
  FakeNetwork network;
  for (const char* name : {"a", "b"}) {
    network.Host(name).AddDevice("mlx5_0", {.ports = {{.infiniband = true}}});
  }
  Endpoints endpoints(
      [&](const std::string& name) { return *MakeVerbsFabric({.library = &network.Host(name)}); });
  const Lane lane = endpoints.Connect(endpoints.Join("a"), endpoints.Join("b"));
  EXPECT_TRUE(endpoints.PostAndComplete(lane, {}, 1));
}

TEST(VerbsFabricTest, GidsOfDifferentKindsDoNotReachEachOther) {
  FakeNetwork network;
  network.Host("a").AddDevice("mlx5_0");
  network.Host("b").AddDevice("mlx5_0");
  Endpoints endpoints([&](const std::string& name) {
    VerbsOptions options{.library = &network.Host(name)};
    if (name == "b") options.gid_index = 2;  // RoCE v1.
    return *MakeVerbsFabric(options);
  });
  const Lane lane = endpoints.Open(endpoints.Join("a"), endpoints.Join("b"));
  Fabric& a = lane.a->fabric();
  ASSERT_TRUE(a.ConnectLane(lane.at_a, *lane.b->fabric().LaneAddress(lane.at_b)).ok());
  ASSERT_TRUE(lane.b->fabric().ConnectLane(lane.at_b, *a.LaneAddress(lane.at_a)).ok());
  ASSERT_TRUE(endpoints.Until([&] { return lane.a->HasFailed(lane.at_a); }));
  EXPECT_EQ(a.LaneStatus(lane.at_a).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(a.LaneStatus(lane.at_a).message(),
            "lane to b: mlx5_0 has a GID of RoCE v2, and mlx5_0 of b one of RoCE v1: use GIDs of "
            "one kind (`waybill doctor` lists them)");
}

TEST(VerbsFabricTest, AFrameCarriesManyGrants) {
  FakeNetwork network;
  for (const char* name : {"a", "b"}) network.Host(name).AddDevice("mlx5_0");
  Endpoints endpoints(
      [&](const std::string& name) { return *MakeVerbsFabric({.library = &network.Host(name)}); });
  const Lane lane = endpoints.Connect(endpoints.Join("a"), endpoints.Join("b"));
  Fabric& b = lane.b->fabric();
  std::vector<std::byte> memory(3000);
  std::vector<std::string> descriptors;
  for (std::byte& byte : memory) {
    const Region region =
        *b.Register({MemoryKind::kHost, &byte, 1}, absl::StrCat("tensor ", descriptors.size()));
    ASSERT_TRUE(b.Grant(lane.at_b, region.id).ok());
    descriptors.push_back(*b.Describe(region.id));
  }
  ASSERT_TRUE(
      endpoints.Until([&] { return lane.a->fabric().Import(lane.at_a, descriptors.back()).ok(); }));
  for (const std::string& descriptor : descriptors) {
    EXPECT_TRUE(lane.a->fabric().Import(lane.at_a, descriptor).ok());
  }
  EXPECT_EQ(CountOf(b, "grant_frames"), 3u);
  EXPECT_TRUE(endpoints.PostAndComplete(lane, {}, 1));
}

TEST(VerbsFabricTest, SixteenWritesOfAPostAreOneDoorbell) {
  FakeNetwork network;
  for (const char* name : {"a", "b"}) network.Host(name).AddDevice("mlx5_0");
  Endpoints endpoints(
      [&](const std::string& name) { return *MakeVerbsFabric({.library = &network.Host(name)}); });
  const Lane lane = endpoints.Connect(endpoints.Join("a"), endpoints.Join("b"));
  const Region from = endpoints.SourceAtA(lane, 16'000);
  const Reached to = endpoints.AllocateAtB(lane, 16'000);
  std::vector<Write> writes;
  for (uint64_t i = 0; i < 16; ++i)
    writes.push_back({from.id, i * 1000, to.remote, i * 1000, 1000});
  const fake_verbs::DeviceCounts before = network.Host("a").counts("mlx5_0");
  const uint64_t doorbells = CountOf(lane.a->fabric(), "doorbells");
  const uint64_t requests = CountOf(lane.a->fabric(), "work_requests");
  ASSERT_TRUE(endpoints.PostAndComplete(lane, writes, 1));
  const fake_verbs::DeviceCounts after = network.Host("a").counts("mlx5_0");
  EXPECT_EQ(after.post_send_calls - before.post_send_calls, 1u);
  EXPECT_EQ(after.requests - before.requests, 16u);
  EXPECT_EQ(after.signalled - before.signalled, 1u);
  EXPECT_EQ(CountOf(lane.a->fabric(), "doorbells") - doorbells, 1u);
  EXPECT_EQ(CountOf(lane.a->fabric(), "work_requests") - requests, 16u);
  EXPECT_EQ(CountOf(lane.a->fabric(), "registrations"), 1u);
  EXPECT_EQ(CountOf(lane.a->fabric(), "registered_bytes"), 16'000u);
}

TEST(VerbsFabricTest, WhatIsNotYetAWholeChainWaitsForTheNextPost) {
  FakeNetwork network;
  for (const char* name : {"a", "b"}) network.Host(name).AddDevice("mlx5_0");
  Endpoints endpoints(
      [&](const std::string& name) { return *MakeVerbsFabric({.library = &network.Host(name)}); });
  const Lane lane = endpoints.Connect(endpoints.Join("a"), endpoints.Join("b"));
  Fabric& a = lane.a->fabric();
  const uint64_t doorbells = CountOf(a, "doorbells");
  for (uint64_t token = 0; token < 33; ++token) ASSERT_TRUE(a.Post(lane.at_a, {}, 1, token).ok());
  EXPECT_EQ(CountOf(a, "doorbells") - doorbells, 3u);  // The first at once, then two chains of 16.
  ASSERT_TRUE(endpoints.Until([&] { return lane.a->IsComplete(lane.at_a, 32); }));
  EXPECT_EQ(CountOf(a, "doorbells") - doorbells, 3u);
}

}  // namespace
}  // namespace waybill
