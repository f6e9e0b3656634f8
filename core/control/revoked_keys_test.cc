// SPDX-License-Identifier: Apache-2.0

#include "core/control/revoked_keys.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace waybill {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

class RevokedKeysTest : public testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  const std::string path_ = testing::TempDir() + "revoked";
  const CertificateInfo key_{.rights = {KeyRole::kWorker, "j", "a"}, .serial = "0AB1"};
};

TEST_F(RevokedKeysTest, WithoutAFileAllAreServed) {
  RevokedKeys keys = RevokedKeys::Read("", kNow).value();
  EXPECT_TRUE(keys.Check(key_).ok());
  EXPECT_EQ(keys.next_deadline(), absl::InfiniteFuture());
}

TEST_F(RevokedKeysTest, AreNamedOneALineWithNotes) {
  Write("# lost laptops\n\n 0ab1 engine 3\n77\n");
  const RevokedKeys keys = RevokedKeys::Read(path_, kNow).value();
  const absl::Status status = keys.Check(key_);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(),
            "the key is that of a worker of group \"a\" in job \"j\", and is revoked (serial "
            "0AB1)");
  EXPECT_TRUE(keys.Check({.serial = "0AB"}).ok());
}

TEST_F(RevokedKeysTest, FollowTheFileAndStayRevokedWhileItCannotBeRead) {
  Write("77\n");
  RevokedKeys keys = RevokedKeys::Read(path_, kNow).value();
  Write("77\n0ab1\n");
  EXPECT_FALSE(keys.OnTime(kNow));
  absl::Time now = keys.next_deadline();
  EXPECT_TRUE(keys.OnTime(now));
  EXPECT_FALSE(keys.Check(key_).ok());
  now = keys.next_deadline();
  EXPECT_FALSE(keys.OnTime(now));
  for (const char* wrong : {"not a serial\n", ""}) {
    Write(wrong);
    if (*wrong == '\0') std::remove(path_.c_str());
    now = keys.next_deadline();
    EXPECT_FALSE(keys.OnTime(now));
    EXPECT_FALSE(keys.Check(key_).ok());
  }
}

TEST_F(RevokedKeysTest, AFileThatCannotBeReadOrHasNoSerialsIsRefused) {
  EXPECT_EQ(RevokedKeys::Read(path_ + "s", kNow).status().message(),
            "revoked keys: " + path_ + "s cannot be read: No such file or directory");
  Write("worker of group a\n");
  EXPECT_EQ(RevokedKeys::Read(path_, kNow).status().message(),
            "revoked keys: " + path_ +
                ": \"WORKER\" is no serial; `waybill keys show` prints a "
                "key's");
}

}  // namespace
}  // namespace waybill
