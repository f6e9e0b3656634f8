#include "core/fabric/choice/make_fabric.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

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

}  // namespace
}  // namespace waybill
