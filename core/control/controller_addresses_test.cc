// SPDX-License-Identifier: Apache-2.0

// The addresses that ranks and commands are given.

#include "core/control/controller_addresses.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace waybill {
namespace {

using Addresses = std::vector<std::string>;

TEST(ControllerAddresses, AreSeparatedByCommas) {
  EXPECT_EQ(SplitAddresses("a:7070"), Addresses{"a:7070"});
  EXPECT_EQ(SplitAddresses("a:7070,b:7070,[::1]:1"), (Addresses{"a:7070", "b:7070", "[::1]:1"}));
  EXPECT_EQ(SplitAddresses("a:7070,,b:7070,"), (Addresses{"a:7070", "b:7070"}));
  EXPECT_EQ(SplitAddresses(""), Addresses{""});
}

TEST(ControllerAddresses, OneOfAHostThatIsNotKnownDoesNotHideTheNext) {
  EXPECT_EQ(*OwnAddressTowardsControllers("127.0.0.1:7070"), "127.0.0.1");
  const auto own = OwnAddressTowardsControllers("no such host:7070,127.0.0.1:7070");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(*own, "127.0.0.1");
  EXPECT_EQ(OwnAddressTowardsControllers("no such host:7070").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OwnAddressTowardsControllers("127.0.0.1:7070,no port").status().code(),
            absl::StatusCode::kOk);
}

}  // namespace
}  // namespace waybill
