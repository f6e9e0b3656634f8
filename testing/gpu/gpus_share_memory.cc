// SPDX-License-Identifier: Apache-2.0

// The simulated GPUs of a test: ranks open each other's memory, as on real ones.

#include "testing/fake_cuda/fake_cuda.h"

namespace waybill {
namespace {

[[maybe_unused]] const bool said = [] {
  FakeCudaSayOfNics(0, kFakeCudaOrders);
  FakeCudaSayOfFiles(0, true);
  return true;
}();

}  // namespace
}  // namespace waybill
