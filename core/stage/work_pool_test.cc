// SPDX-License-Identifier: Apache-2.0

#include "core/stage/work_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace waybill {
namespace {

class WorkPoolTest : public testing::TestWithParam<uint32_t> {};

TEST_P(WorkPoolTest, DoesEveryTaskOnceAndTellsOnce) {
  std::vector<std::atomic<int>> done(1000);
  std::mutex mutex;
  std::condition_variable changed;
  int finished = 0;
  WorkPool::Batch batch([&](uint32_t i) { ++done[i]; },
                        [&] {
                          const std::lock_guard lock(mutex);
                          ++finished;
                          changed.notify_all();
                        });
  WorkPool pool(GetParam());
  for (int round = 1; round <= 20; ++round) {
    pool.Run(batch, 1000);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return finished == round; });
  }
  for (const auto& count : done) EXPECT_EQ(count, 20);
}

TEST_P(WorkPoolTest, ABatchOfNothingIsFinishedAtOnce) {
  int finished = 0;
  WorkPool::Batch batch([](uint32_t) { FAIL(); }, [&] { ++finished; });
  WorkPool pool(GetParam());
  pool.Run(batch, 0);
  EXPECT_EQ(finished, 1);
}

TEST(WorkPool, AfterCancelNothingOfTheBatchRuns) {
  std::mutex mutex;
  std::condition_variable changed;
  bool begun = false, go_on = false;
  std::atomic<int> done = 0;
  int finished = 0;
  WorkPool::Batch batch(
      [&](uint32_t) {
        std::unique_lock lock(mutex);
        begun = true;
        changed.notify_all();
        changed.wait(lock, [&] { return go_on; });
        ++done;
      },
      [&] { ++finished; });
  WorkPool pool(1);
  pool.Run(batch, 100);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun; });
    go_on = true;
    changed.notify_all();
  }
  pool.Cancel(batch);
  const int at_return = done;
  EXPECT_GE(at_return, 1);
  pool.Cancel(batch);
  EXPECT_EQ(done, at_return);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkPoolTest, testing::Values(0, 1, 3));

}  // namespace
}  // namespace waybill
