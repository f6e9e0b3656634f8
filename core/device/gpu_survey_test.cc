// SPDX-License-Identifier: Apache-2.0

// Over a driver that is not one: //testing/fake_cuda.

#include "core/device/gpu_survey.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include "testing/fake_cuda/fake_cuda.h"

namespace waybill {
namespace {

TEST(SurveyGpus, SaysWhoMayUseEach) {
  if (FakeCudaIsHip()) GTEST_SKIP() << "HIP has no such modes";
  FakeCudaSetAttribute(0, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
  FakeCudaSetAttribute(1, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_PROHIBITED);
  auto gpus = SurveyGpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  EXPECT_EQ((*gpus)[0].compute_mode, ComputeMode::kOneProcess);
  EXPECT_EQ((*gpus)[1].compute_mode, ComputeMode::kNobody);
  FakeCudaSetAttribute(0, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT);
  gpus = SurveyGpus();
  EXPECT_EQ((*gpus)[0].compute_mode, ComputeMode::kShared);
}

}  // namespace
}  // namespace waybill
