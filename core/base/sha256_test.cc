// SPDX-License-Identifier: Apache-2.0

#include "core/base/sha256.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace waybill {
namespace {

// The examples of FIPS 180-2.
TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(absl::BytesToHexString(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(absl::BytesToHexString(Sha256("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace waybill
