// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_cuda/fake_cuda.h"

extern "C" __attribute__((visibility("default"))) bool FakeCudaIsHip() { return false; }
