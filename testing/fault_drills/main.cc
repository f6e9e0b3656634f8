// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "testing/fault_drills/peer_process.h"

int main(int argc, char** argv) {
  const int as_peer = waybill::drills::PeerMain(argc, argv);
  if (as_peer >= 0) return as_peer;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
