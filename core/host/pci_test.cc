// SPDX-License-Identifier: Apache-2.0

#include "core/host/pci.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "core/host/fake_sys.h"

namespace waybill {
namespace {

constexpr const char* kGpuLink = "/sys/bus/pci/devices/gpu";
constexpr const char* kNicLink = "/sys/class/infiniband/nic/device";

struct Distant {
  const char* name;
  const char* gpu;
  const char* nic;
  const char* numa_of_gpu;
  const char* numa_of_nic;
  PciDistance distance;
};

class DistanceTest : public testing::TestWithParam<Distant> {};

TEST_P(DistanceTest, IsByTheNearestThingThatBothAreBelow) {
  const FakeSys sys;
  const Distant& pair = GetParam();
  sys.Device(pair.gpu, kGpuLink);
  sys.Device(pair.nic, kNicLink);
  sys.File(std::string("/sys/devices/") + pair.gpu + "/numa_node", pair.numa_of_gpu);
  sys.File(std::string("/sys/devices/") + pair.nic + "/numa_node", pair.numa_of_nic);
  const PciDevice gpu(sys.root() + kGpuLink), nic(sys.root() + kNicLink);
  EXPECT_EQ(DistanceBetween(gpu, nic), pair.distance);
  EXPECT_EQ(DistanceBetween(nic, gpu), pair.distance);
}

constexpr const char* kGpu = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.0";
INSTANTIATE_TEST_SUITE_P(
    All, DistanceTest,
    testing::Values(
        Distant{"one_switch", kGpu,
                "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3e:00.0", "0", "0",
                PciDistance::kOneSwitch},
        Distant{"two_switches", kGpu,
                "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3e:00.0/0000:3f:00.0/"
                "0000:40:00.0",
                "0", "0", PciDistance::kSwitches},
        Distant{"one_bridge", kGpu, "pci0000:3a/0000:3a:01.0/0000:41:00.0", "0", "0",
                PciDistance::kHostBridge},
        Distant{"one_node", kGpu, "pci0000:5a/0000:5a:00.0/0000:5b:00.0", "0", "0",
                PciDistance::kNumaNode},
        Distant{"two_nodes", kGpu, "pci0000:8a/0000:8a:00.0/0000:8b:00.0", "0", "1",
                PciDistance::kSystem},
        Distant{"nodes_that_are_not_known", kGpu, "pci0000:5a/0000:5a:00.0/0000:5b:00.0", "-1",
                "-1", PciDistance::kSystem}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(PciDevice, ADeviceThatIsNotThereIsFarAndHasNothing) {
  const FakeSys sys;
  sys.Device("pci0000:3a/0000:3b:00.0", kGpuLink);
  const PciDevice gpu(sys.root() + kGpuLink), none(sys.root() + kNicLink);
  EXPECT_EQ(DistanceBetween(gpu, none), PciDistance::kSystem);
  EXPECT_EQ(none.Read("numa_node"), "");
  EXPECT_EQ(none.largest_region_bytes(), 0u);
  EXPECT_EQ(none.FindRedirectingBridge(), std::nullopt);
}

TEST(PciDevice, TheLargestMemoryRegionIsFound) {
  const FakeSys sys;
  sys.Device("pci0000:3a/0000:3b:00.0", kGpuLink);
  sys.File("/sys/devices/pci0000:3a/0000:3b:00.0/resource",
           "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n"
           "0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n"
           "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
           "0x0000000000003000 0x00ffffffffffffff 0x0000000000040101");
  EXPECT_EQ(PciDevice(sys.root() + kGpuLink).largest_region_bytes(), uint64_t{256} << 30);
}

// A configuration whose first extended capability is `first`, followed by ACS with that control.
std::string ConfigOf(uint8_t control) {
  std::string config(4096, '\0');
  const auto write = [&](size_t at, uint32_t header) {
    for (size_t i = 0; i < 4; ++i) config[at + i] = static_cast<char>(header >> (8 * i));
  };
  write(0x100, 0x1480'0001);  // Advanced errors; the next one is at 0x148.
  write(0x148, 0x0001'000D);  // Access control; the last one.
  config[0x14E] = static_cast<char>(control);
  return config;
}

TEST(PciDevice, ABridgeThatRedirectsRequestsIsFound) {
  const FakeSys sys;
  sys.Device("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3d:00.0", kGpuLink);
  const std::string bridges = "/sys/devices/pci0000:3a/0000:3a:00.0/";
  sys.File(bridges + "config", ConfigOf(0x1B));  // Everything but redirected requests.
  sys.File(bridges + "0000:3b:00.0/config", ConfigOf(0x1D));
  const PciDevice gpu(sys.root() + kGpuLink);
  EXPECT_EQ(gpu.FindRedirectingBridge(), "0000:3b:00.0");
  sys.File(bridges + "0000:3b:00.0/config", ConfigOf(0));
  EXPECT_EQ(gpu.FindRedirectingBridge(), std::nullopt);
  // What a process without privileges can read.
  sys.File(bridges + "0000:3b:00.0/config", ConfigOf(0x1D).substr(0, 64));
  EXPECT_EQ(gpu.FindRedirectingBridge(), std::nullopt);
}

TEST(PciDevice, AListOfCapabilitiesThatGoesInACircleEnds) {
  const FakeSys sys;
  sys.Device("pci0000:3a/0000:3a:00.0/0000:3d:00.0", kGpuLink);
  std::string config = ConfigOf(0x1D);
  config[0x102] = 0x00;
  config[0x103] = 0x10;  // The next one is itself.
  sys.File("/sys/devices/pci0000:3a/0000:3a:00.0/config", config);
  EXPECT_EQ(PciDevice(sys.root() + kGpuLink).FindRedirectingBridge(), std::nullopt);
}

}  // namespace
}  // namespace waybill
