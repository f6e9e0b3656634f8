// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/driver.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/kernel.h"

namespace waybill::kernels::cuda {
namespace {

TEST(FindGpu, SaysTheSameToEveryThread) {
  std::vector<std::string> reasons(8);
  std::vector<std::thread> threads;
  for (std::string& reason : reasons) {
    threads.emplace_back([&reason] { reason = FindGpu().reason(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& reason : reasons) EXPECT_EQ(reason, reasons[0]);
}

TEST(FindGpu, SaysWhyThereIsNone) {
  const Outcome outcome = FindGpu();
  if (outcome.ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(outcome.reason().rfind("no GPU: ", 0), 0U) << outcome.reason();
  EXPECT_GT(outcome.reason().size(), std::string("no GPU: ").size());
  std::printf("%s\n", outcome.reason().c_str());
}

TEST(Launch, FailsWhereThereIsNoGpu) {
  const Outcome found = FindGpu();
  if (found.ok()) GTEST_SKIP() << "this machine has a GPU";
  Kernel kernel("WaybillRows1");
  EXPECT_EQ(kernel({1}, 0, nullptr).reason(), found.reason());
  EXPECT_EQ(PrepareContext().reason(), found.reason());
}

}  // namespace
}  // namespace waybill::kernels::cuda
