// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/running_job/lane_table.h"

#include <gtest/gtest.h>

namespace waybill {
namespace {

const std::vector<std::string> kPaths = {
    "tcp: 10.0.0.1:40001 to 10.0.0.2:40002; not local: another host",
    "tcp: 10.0.0.1:40001 to 10.0.0.2:40003; not local: another host",
    "tcp: [fd00::1]:40001 to [fd00::2]:40002",
    "verbs: mlx5_0:1 to mlx5_1:1",
    "verbs: mlx5_0:1 to mlx5_1:1",
};

TEST(LaneTable, ASummaryHasALineForEachPairOfHostsOrNics) {
  EXPECT_EQ(LaneTable(kPaths, LaneDetail::kSummary),
            "     2  tcp: 10.0.0.1 to 10.0.0.2; not local: another host\n"
            "     1  tcp: [fd00::1] to [fd00::2]\n"
            "     2  verbs: mlx5_0:1 to mlx5_1:1\n");
}

TEST(LaneTable, AllLanesHaveTheirPorts) {
  EXPECT_EQ(LaneTable(kPaths, LaneDetail::kAll),
            "     1  tcp: 10.0.0.1:40001 to 10.0.0.2:40002; not local: another host\n"
            "     1  tcp: 10.0.0.1:40001 to 10.0.0.2:40003; not local: another host\n"
            "     1  tcp: [fd00::1]:40001 to [fd00::2]:40002\n"
            "     2  verbs: mlx5_0:1 to mlx5_1:1\n");
}

}  // namespace
}  // namespace waybill
