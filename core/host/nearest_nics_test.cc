// SPDX-License-Identifier: Apache-2.0

#include "core/host/nearest_nics.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/host/fake_sys.h"

namespace waybill {
namespace {

using Names = std::vector<std::string>;

// Two switches of one processor, a GPU and a NIC below each, and a NIC of the other processor.
class NearestNicsTest : public testing::Test {
 protected:
  NearestNicsTest() {
    sys_.Device("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3d:00.0",
                "/sys/bus/pci/devices/0000:3d:00.0");
    sys_.Device("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3e:00.0",
                "/sys/class/infiniband/mlx5_0/device");
    sys_.Device("pci0000:3a/0000:3a:02.0/0000:5b:00.0/0000:5d:00.0",
                "/sys/bus/pci/devices/0000:5d:00.0");
    sys_.Device("pci0000:3a/0000:3a:02.0/0000:5b:00.0/0000:5e:00.0",
                "/sys/class/infiniband/mlx5_1/device");
    sys_.Device("pci0000:8a/0000:8b:00.0", "/sys/class/infiniband/mlx5_2/device");
  }
  NearestNics Find(const std::string& gpu, const Names& ports) const {
    return FindNearestNics(gpu, ports, sys_.root());
  }
  FakeSys sys_;
};

TEST_F(NearestNicsTest, EachGpuHasItsOwn) {
  const Names all = {"mlx5_2", "mlx5_1", "mlx5_0", "mlx5_0:2"};
  EXPECT_EQ(Find("0000:3d:00.0", all).names, (Names{"mlx5_0", "mlx5_0:2"}));
  EXPECT_EQ(Find("0000:3d:00.0", all).distance, PciDistance::kOneSwitch);
  EXPECT_EQ(Find("0000:3d:00.0", all).why,
            "nearest to the GPU at 0000:3d:00.0 (PIX: at most one switch between them)");
  EXPECT_EQ(Find("0000:5d:00.0", all).names, (Names{"mlx5_1"}));
}

TEST_F(NearestNicsTest, WithoutTheNearestTheNextIsTaken) {
  EXPECT_EQ(Find("0000:5d:00.0", {"mlx5_2", "mlx5_0"}).names, (Names{"mlx5_0"}));
  EXPECT_EQ(Find("0000:5d:00.0", {"mlx5_2", "mlx5_0"}).distance, PciDistance::kHostBridge);
  EXPECT_EQ(Find("0000:5d:00.0", {"mlx5_2"}).names, (Names{"mlx5_2"}));
}

TEST_F(NearestNicsTest, WhereTheKernelDoesNotTellAllAreEquallyFar) {
  const Names all = {"rxe0", "mlx5_0", "rxe1"};
  EXPECT_EQ(Find("0000:99:00.0", all).names, all);
  EXPECT_EQ(Find("0000:99:00.0", all).distance, PciDistance::kSystem);
  EXPECT_EQ(Find("0000:99:00.0", all).why, "");
  EXPECT_EQ(Find("0000:3d:00.0", {"rxe0", "rxe1"}).names, (Names{"rxe0", "rxe1"}));
  EXPECT_TRUE(Find("0000:3d:00.0", {}).names.empty());
}

}  // namespace
}  // namespace waybill
