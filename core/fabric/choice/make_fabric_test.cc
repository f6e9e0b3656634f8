// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/make_fabric.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/fabric.h"

namespace waybill {
namespace {

TEST(MakeFabric, RaisesTheSoftLimitOfOpenFilesToTheHardOne) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto fabric = MakeFabric({.forced = FabricKind::kTcp});
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(MakeFabric, ALaneSaysThatTheOtherEndForcesAFabric) {
  const auto any = MakeFabric({.host = "127.0.0.1"});
  const auto forced = MakeFabric({.forced = FabricKind::kTcp, .host = "127.0.0.1"});
  ASSERT_TRUE(any.ok() && forced.ok()) << any.status() << forced.status();
  const LaneId here = (*any)->OpenLane("peer", "").value();
  const LaneId there = (*forced)->OpenLane("peer", "").value();
  const std::string address = (*any)->LaneAddress(here).value();
  ASSERT_TRUE((*any)->ConnectLane(here, (*forced)->LaneAddress(there).value()).ok());
  ASSERT_TRUE((*forced)->ConnectLane(there, address).ok());
  std::vector<FabricEvent> events;
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  while ((*any)->DescribeLane(here) == "not connected" && SteadyNow() < deadline) {
    (*any)->Wait(SteadyNow() + absl::Milliseconds(5));
    (*any)->Poll(events);
    (*forced)->Poll(events);
  }
  const std::string path = (*any)->DescribeLane(here);
  EXPECT_NE(path.find("not local: the other end does not offer it: its `fabric` option"),
            std::string::npos)
      << path;
}

}  // namespace
}  // namespace waybill
