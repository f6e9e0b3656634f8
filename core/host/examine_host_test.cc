// SPDX-License-Identifier: Apache-2.0

#include "core/host/examine_host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "core/host/fake_sys.h"
#include "core/net/tcp_socket.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill {
namespace {

using Level = Finding::Level;

class ExamineHostTest : public testing::Test {
 protected:
  void File(const std::string& path, const std::string& text) { sys_.File(path, text); }

  static Finding Of(const std::vector<Finding>& findings, const std::string& subject) {
    for (const Finding& finding : findings) {
      if (finding.subject == subject) return finding;
    }
    ADD_FAILURE() << "nothing is said of " << subject;
    return {};
  }

  FakeSys sys_;
  HostView view_ = {.root = sys_.root(), .locked_memory_bytes = ~uint64_t{0}, .open_files = 65536};
  fake_verbs::FakeNetwork network_;
};

TEST_F(ExamineHostTest, AHostWithoutRdmaIsToldThatTcpServesIt) {
  const Finding finding = Of(ExamineRdma(SurveyRdma(std::nullopt, &network_.Host("bare"))), "RDMA");
  EXPECT_EQ(finding.level, Level::kNote);
  EXPECT_TRUE(absl::StrContains(finding.found, "no RDMA device")) << finding.found;
  EXPECT_TRUE(absl::StrContains(finding.remedy, "tcp")) << finding.remedy;
}

TEST_F(ExamineHostTest, EveryPortIsDescribedAndTheGidThatWouldBeUsed) {
  network_.Host("a").AddDevice("mlx5_0");
  const auto ports = SurveyRdma(std::nullopt, &network_.Host("a"));
  ASSERT_TRUE(ports.ok()) << ports.status();
  const std::vector<Finding> findings = ExamineRdma(ports);
  const Finding port = Of(findings, "mlx5_0");
  EXPECT_EQ(port.level, Level::kGood);
  EXPECT_TRUE(absl::StrContains(port.found, "Ethernet, active, 100 Gbit/s")) << port.found;
  const Finding gid = Of(findings, "mlx5_0, GID");
  EXPECT_TRUE(absl::StrContains(gid.found, "RoCE v2 with an IPv4 address")) << gid.found;
  EXPECT_EQ(gid.level, Level::kGood);
  EXPECT_EQ(Of(findings, "mlx5_0, MTU").level, Level::kGood);
}

TEST_F(ExamineHostTest, ASmallMtuAndALinkLocalGidAreNoted) {
  const std::vector<Finding> findings = ExamineRdma(std::vector<SurveyedPort>{
      {.name = "rxe0",
       .device = "rxe0",
       .link_layer = "Ethernet",
       .mtu_bytes = 1024,
       .max_mtu_bytes = 4096,
       .gids = {{0, "RoCE v2", "fe80:0:0:0:0:ff:fe00:7"}},
       .chosen_reason = "RoCE v2 with a link-local address, which reaches one subnet only"}});
  EXPECT_EQ(Of(findings, "rxe0, MTU").level, Level::kNote);
  EXPECT_TRUE(absl::StrContains(Of(findings, "rxe0, MTU").remedy, "9000"));
  EXPECT_EQ(Of(findings, "rxe0, GID").level, Level::kNote);
}

TEST_F(ExamineHostTest, ADeviceThatCannotCarryLanesIsToldWithoutARemedyForItsLink) {
  network_.Host("a").AddDevice("efa_0", {.reliable_connections = false});
  const Finding port = Of(ExamineRdma(SurveyRdma(std::nullopt, &network_.Host("a"))), "efa_0");
  EXPECT_EQ(port.level, Finding::Level::kBad);
  EXPECT_NE(port.found.find("it has no reliable connections"), std::string::npos) << port.found;
  EXPECT_EQ(port.remedy, "without it, other NICs and tcp carry the lanes");
}

TEST_F(ExamineHostTest, APortThatIsDownIsBad) {
  network_.Host("a").AddDevice("mlx5_0", {.ports = {{.active = false}}});
  const Finding port = Of(ExamineRdma(SurveyRdma(std::nullopt, &network_.Host("a"))), "mlx5_0");
  EXPECT_EQ(port.level, Level::kBad);
  EXPECT_FALSE(port.remedy.empty());
}

TEST_F(ExamineHostTest, ASlotThatGivesLessThanTheNicTakesIsBad) {
  const std::string device = "/sys/class/infiniband/mlx5_0/device/";
  File(device + "current_link_speed", "16.0 GT/s PCIe");
  File(device + "max_link_speed", "16.0 GT/s PCIe");
  File(device + "current_link_width", "8");
  File(device + "max_link_width", "16");
  const std::vector<SurveyedPort> ports = {{.name = "mlx5_0", .device = "mlx5_0"}};
  Finding link = Of(ExamineHost(view_, ports), "mlx5_0, PCIe link");
  EXPECT_EQ(link.level, Level::kBad);
  EXPECT_EQ(link.found, "16.0 GT/s PCIe x8 of 16.0 GT/s PCIe x16");
  File(device + "current_link_width", "16");
  EXPECT_EQ(Of(ExamineHost(view_, ports), "mlx5_0, PCIe link").level, Level::kGood);
}

TEST_F(ExamineHostTest, LockedMemoryMattersWhereThereIsRdma) {
  view_.locked_memory_bytes = 8 << 20;
  const std::string subject = "locked memory (RLIMIT_MEMLOCK)";
  const std::vector<SurveyedPort> ports = {{.name = "mlx5_0", .device = "mlx5_0"}};
  EXPECT_EQ(Of(ExamineHost(view_, ports), subject).level, Level::kBad);
  EXPECT_EQ(Of(ExamineHost(view_, ports), subject).found, "8192 KiB");
  EXPECT_EQ(Of(ExamineHost(view_, {}), subject).level, Level::kNote);
  view_.locked_memory_bytes = ~uint64_t{0};
  EXPECT_EQ(Of(ExamineHost(view_, ports), subject).level, Level::kGood);
}

TEST_F(ExamineHostTest, ANumaNodeWithoutANicIsNoted) {
  File("/sys/devices/system/node/node0/cpulist", "0-15");
  File("/sys/devices/system/node/node1/cpulist", "16-31");
  const std::vector<SurveyedPort> one = {{.name = "a", .device = "a", .numa_node = 1}};
  const std::vector<SurveyedPort> both = {{.name = "a", .device = "a", .numa_node = 1},
                                          {.name = "b", .device = "b", .numa_node = 0}};
  EXPECT_EQ(Of(ExamineHost(view_, one), "NUMA").level, Level::kNote);
  EXPECT_EQ(Of(ExamineHost(view_, both), "NUMA").level, Level::kGood);
}

TEST(ExamineControlPortTest, AnAddressThatIsNotOursIsBadAndAFreePortIsGood) {
  EXPECT_EQ(ExamineControlPort("127.0.0.1", 0).level, Level::kBad);  // Nobody can be reached at 0.
  const auto listener = net::Listen({.host = "127.0.0.1"});
  ASSERT_TRUE(listener.ok());
  const Finding taken = ExamineControlPort("127.0.0.1", listener->address.port);
  EXPECT_EQ(taken.level, Level::kGood);
  EXPECT_TRUE(absl::StrContains(taken.found, "somebody listens there already")) << taken.found;
}

TEST(ExamineHostName, ANameThatStandsForLoopbackIsNoted) {
  const Finding hidden = ExamineHostName("node-a", "127.0.1.1");
  EXPECT_EQ(hidden.level, Finding::Level::kNote);
  EXPECT_EQ(hidden.found, "127.0.1.1, which other hosts cannot reach");
  EXPECT_NE(hidden.remedy, "");
  EXPECT_EQ(ExamineHostName("node-a", "10.0.0.1").level, Finding::Level::kGood);
}

}  // namespace
}  // namespace waybill
