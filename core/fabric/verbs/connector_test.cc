// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/connector.h"

#include <gtest/gtest.h>

#include <latch>
#include <semaphore>
#include <vector>

namespace waybill::verbs {
namespace {

TEST(Connector, RunsTasksInOrderAndTellsWhatCameOfThem) {
  Connector connector;
  std::counting_semaphore<> done(0);
  for (uint32_t lane : {3, 1, 2}) {
    connector.Connect(
        lane, [lane] { return lane == 1 ? absl::UnavailableError("no way") : absl::OkStatus(); },
        [&] { done.release(); });
  }
  for (int i = 0; i < 3; ++i) done.acquire();
  const std::vector<Connector::Done> told = connector.TakeDone();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0].lane, 3u);
  EXPECT_EQ(told[1].lane, 1u);
  EXPECT_EQ(told[1].status, absl::UnavailableError("no way"));
  EXPECT_EQ(told[2].lane, 2u);
  EXPECT_TRUE(connector.TakeDone().empty());
}

TEST(Connector, NothingRunsForALaneThatIsForgotten) {
  Connector connector;
  std::latch running(1);
  std::binary_semaphore go_on(0);
  bool first_ended = false;
  bool second_ran = false;
  connector.Connect(
      1,
      [&] {
        running.count_down();
        go_on.acquire();
        first_ended = true;
        return absl::OkStatus();
      },
      [] {});
  connector.Connect(
      2,
      [&] {
        second_ran = true;
        return absl::OkStatus();
      },
      [] {});
  running.wait();
  connector.Forget(2);
  go_on.release();
  connector.Forget(1);
  EXPECT_TRUE(first_ended);
  EXPECT_FALSE(second_ran);
  EXPECT_TRUE(connector.TakeDone().empty());
}

}  // namespace
}  // namespace waybill::verbs
