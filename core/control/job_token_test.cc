// SPDX-License-Identifier: Apache-2.0

#include "core/control/job_token.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace waybill {
namespace {

class JobTokenTest : public testing::Test {
 protected:
  JobTokenTest() : folder_(testing::TempDir() + "job_token_test") {
    std::filesystem::remove_all(folder_);
    setenv("XDG_STATE_HOME", folder_.c_str(), 1);
  }

  const std::string folder_;
  const std::string path_ = folder_ + "/waybill/token";
};

TEST_F(JobTokenTest, AGivenTokenIsTakenAndAShortOneRefused) {
  EXPECT_EQ(JobToken("0123456789abcdef").value(), "0123456789abcdef");
  const absl::Status status = JobToken("0123456789abcde").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(
      status.message(),
      "the token has 15 bytes, and 16 are the least; set WAYBILL_TOKEN to the same secret for "
      "all processes of the job (`openssl rand -hex 16` makes one)");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(JobTokenTest, WithoutOneAllProcessesOfAUserHaveTheSameThatNobodyElseCanRead) {
  std::vector<std::string> tokens(8);
  std::vector<std::thread> threads;
  for (std::string& token : tokens) threads.emplace_back([&] { token = JobToken("").value(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(tokens.begin(), tokens.end()).size(), 1);
  EXPECT_EQ(tokens[0].size(), 32);
  struct stat file{};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600);
}

TEST_F(JobTokenTest, AFileThatOthersCanReadOrHaveLinkedIsNotTrusted) {
  ASSERT_TRUE(JobToken("").ok());
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  EXPECT_EQ(JobToken("").status().message(),
            "no token is given, and the user's own, " + path_ +
                ", is not a file that only this user can read; remove it; set WAYBILL_TOKEN to the "
                "same secret for all processes of the job (`openssl rand -hex 16` makes one)");
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  std::filesystem::rename(path_, path_ + "s");
  std::filesystem::create_symlink(path_ + "s", path_);
  EXPECT_EQ(JobToken("").status().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(JobTokenTest, WithoutHomeItIsInTheUsersDirectory) {
  unsetenv("XDG_STATE_HOME");
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  unsetenv("HOME");
  const passwd* const user = getpwuid(geteuid());
  EXPECT_EQ(StateFolder(),
            user == nullptr ? "" : std::string(user->pw_dir) + "/.local/state/waybill");
  if (home != nullptr) setenv("HOME", before.c_str(), 1);
}

TEST_F(JobTokenTest, WhereNoFileCanBeTheErrorSaysWhatToSet) {
  std::ofstream(folder_) << "in the way";
  const absl::Status status = JobToken("").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_NE(status.message().find("cannot be made: Not a directory; set WAYBILL_TOKEN"),
            std::string::npos)
      << status;
}

}  // namespace
}  // namespace waybill
