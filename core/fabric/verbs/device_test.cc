// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "core/fabric/verbs/libibverbs.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill::verbs {
namespace {

using fake_verbs::DeviceOptions;
using fake_verbs::FakeHost;
using fake_verbs::FakeNetwork;
using fake_verbs::Ipv4Gid;
using fake_verbs::LinkLocalGid;

absl::StatusOr<std::unique_ptr<Device>> OpenFirst(FakeHost& host) {
  ibv_device** list = host.GetDeviceList(nullptr);
  auto device = Device::Open(&host, list[0]);
  host.FreeDeviceList(list);
  return device;
}

TEST(LinkBytesPerSecond, IsThatOfTheSpecification) {
  constexpr uint64_t kGigabit = 1'000'000'000 / 8;
  struct {
    const char* name;
    uint8_t width;
    uint32_t speed;
    uint64_t expected;
  } const kCases[] = {
      {"1x SDR", 1, 1, 2 * kGigabit},
      {"4x QDR", 2, 4, 32 * kGigabit},
      {"4x FDR10", 2, 8, 40 * kGigabit},
      {"4x EDR", 2, 32, 100 * kGigabit},
      {"4x HDR", 2, 64, 200 * kGigabit},
      {"2x HDR", 16, 64, 100 * kGigabit},
      {"4x NDR", 2, 128, 400 * kGigabit},
      {"8x NDR", 4, 128, 800 * kGigabit},
      {"4x XDR", 2, 256, 800 * kGigabit},
      {"12x EDR", 8, 32, 300 * kGigabit},
      {"rxe says 1x SDR", 1, 1, 2 * kGigabit},
      {"no width", 0, 32, 0},
      {"no speed", 2, 0, 0},
      {"two speeds", 2, 48, 0},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(LinkBytesPerSecond(c.width, c.speed), c.expected) << c.name;
  }
}

TEST(DeviceTest, OneThatDoesNotOpenIsToldByName) {
  FakeNetwork network;
  FakeHost& host = network.Host("a");
  host.AddDevice("mlx5_3");
  host.FailDevice("mlx5_3");
  const absl::Status status = OpenFirst(host).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "ibv_open_device of RDMA device mlx5_3"))
      << status;
}

TEST(DeviceTest, IsSoftwareWhereItsVendorIsNobody) {
  FakeNetwork network;
  network.Host("a").AddDevice("mlx5_0");
  network.Host("b").AddDevice("rxe0", {.vendor_id = 0xFFFFFF});
  EXPECT_FALSE((*OpenFirst(network.Host("a")))->is_software());
  EXPECT_TRUE((*OpenFirst(network.Host("b")))->is_software());
}

struct PortCase {
  const char* name;
  fake_verbs::PortOptions port;
  std::optional<uint32_t> forced;
  const char* text;  // Describes the NIC, or says why it is not used.
  bool usable;
};

const PortCase kPortCases[] = {
    {"roce",
     {.gids = {{LinkLocalGid(IBV_GID_TYPE_ROCE_V2, 1),
                Ipv4Gid(IBV_GID_TYPE_ROCE_V2, 10, 0, 0, 7)}}},
     {},
     "mlx5_0 port 1, RoCE v2 10.0.0.7 (GID 1: RoCE v2 with an IPv4 address), MTU 4096, 100 Gbit/s",
     true},
    {"a_small_mtu",
     {.mtu = IBV_MTU_1024, .speed = 128, .gids = {{Ipv4Gid(IBV_GID_TYPE_ROCE_V2, 10, 0, 0, 7)}}},
     {},
     "MTU 1024, 400 Gbit/s",
     true},
    {"forced",
     {.gids = {{LinkLocalGid(IBV_GID_TYPE_ROCE_V2, 1),
                Ipv4Gid(IBV_GID_TYPE_ROCE_V2, 10, 0, 0, 7)}}},
     0,
     "(GID 0: as it was asked for)",
     true},
    {"infiniband",
     {.infiniband = true, .speed = 64},
     {},
     "mlx5_0 port 1, InfiniBand fe80:0:0:0:0:ff:fe00:11 (GID 0: the port's first, on InfiniBand), "
     "MTU 4096, 200 Gbit/s",
     true},
    {"down",
     {.active = false},
     {},
     "port 1 of mlx5_0 is not active: is its network interface up, and its cable in?",
     false},
    {"infiniband_down",
     {.active = false, .infiniband = true},
     {},
     "port 1 of mlx5_0 is not active: is its cable in, and does a subnet manager run?",
     false},
    {"no_gid",
     {.gids = std::vector<fake_verbs::GidRow>(4)},
     {},
     "port 1 of mlx5_0: the port has no GID: its network interface has no address",
     false},
    {"of_other_network_namespaces",
     {.gids = {{{.kind = IBV_GID_TYPE_ROCE_V2, .gid = {1}, .is_foreign = true}}}},
     {},
     "port 1 of mlx5_0: the port has 1 GIDs, all of interfaces in other network namespaces: give "
     "this container an interface of the NIC with an address, or run it in the host's network",
     false},
    {"an_empty_row_is_forced",
     {.gids = {{Ipv4Gid(IBV_GID_TYPE_ROCE_V2, 10, 0, 0, 7), {}}}},
     1,
     "port 1 of mlx5_0: the port has no GID of index 1; it has 1 GIDs",
     false},
};

class PortTest : public testing::TestWithParam<PortCase> {};

TEST_P(PortTest, IsUsedOrToldWhyNot) {
  const PortCase& c = GetParam();
  FakeNetwork network;
  FakeHost& host = network.Host("a");
  host.AddDevice("mlx5_0", {.ports = {c.port}});
  const std::unique_ptr<Device> device = *OpenFirst(host);
  Nic nic(&host, device.get(), 1);
  const absl::Status status = nic.Refresh(c.forced);
  EXPECT_EQ(nic.status, status);
  EXPECT_EQ(status.ok(), c.usable) << status;
  if (c.usable) {
    EXPECT_TRUE(absl::StrContains(nic.Describe(), c.text)) << nic.Describe();
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), c.text);
  }
}

INSTANTIATE_TEST_SUITE_P(Ports, PortTest, testing::ValuesIn(kPortCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(OwnNamespace, HasAGidWhoseAddressAnInterfaceHas) {
  const auto gid = [](const fake_verbs::GidRow& row) {
    ibv_gid_entry entry{.gid_type = row.kind};
    std::memcpy(entry.gid.raw, row.gid.data(), row.gid.size());
    return entry;
  };
  EXPECT_TRUE(IsOfOwnNamespace(gid(Ipv4Gid(IBV_GID_TYPE_ROCE_V2, 127, 0, 0, 1))));
  EXPECT_FALSE(IsOfOwnNamespace(gid(Ipv4Gid(IBV_GID_TYPE_ROCE_V2, 192, 0, 2, 77))));
  ibv_gid_entry link_local = gid(LinkLocalGid(IBV_GID_TYPE_ROCE_V1, 1));
  EXPECT_TRUE(IsOfOwnNamespace(link_local));
  link_local.ndev_ifindex = 0x7FFF'FFFF;
  EXPECT_FALSE(IsOfOwnNamespace(link_local));
  EXPECT_TRUE(IsOfOwnNamespace(gid(LinkLocalGid(IBV_GID_TYPE_IB, 1))));
}

TEST(NicTest, IsRefreshedWhenItsPortComesBackWithOtherAddresses) {
  FakeNetwork network;
  FakeHost& host = network.Host("a");
  host.AddDevice("mlx5_0");
  const std::unique_ptr<Device> device = *OpenFirst(host);
  Nic nic(&host, device.get(), 1);
  ASSERT_TRUE(nic.Refresh({}).ok());
  host.SetPort("mlx5_0", 1, false);
  EXPECT_FALSE(nic.Refresh({}).ok());
  host.SetPort("mlx5_0", 1, true);
  host.SetGids("mlx5_0", 1, {{}, Ipv4Gid(IBV_GID_TYPE_ROCE_V2, 192, 168, 7, 7)});
  EXPECT_TRUE(nic.Refresh({}).ok());
  EXPECT_EQ(ToString(nic.gid().entry.gid), "192.168.7.7");
  EXPECT_EQ(nic.gid().entry.index, 1u);
  host.FailDevice("mlx5_0");
  EXPECT_TRUE(
      absl::StrContains(nic.Refresh({}).message(), "ibv_query_port 1 of RDMA device mlx5_0"));
}

}  // namespace
}  // namespace waybill::verbs
