// SPDX-License-Identifier: Apache-2.0

// Runs the body of a test on each vector target that was compiled and that this machine has.

#ifndef KERNELS_EVERY_TARGET_H_
#define KERNELS_EVERY_TARGET_H_

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>

namespace waybill::kernels {

template <typename Body>
void OnEveryTarget(Body&& body) {
  // SupportedTargets also names targets that were not compiled, which would run another one's code.
  for (int64_t left = HWY_TARGETS & hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace waybill::kernels

#endif  // KERNELS_EVERY_TARGET_H_
