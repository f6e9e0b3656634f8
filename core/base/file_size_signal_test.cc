// SPDX-License-Identifier: Apache-2.0

#include "core/base/file_size_signal.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/unique_fd.h"

namespace waybill {
namespace {

bool IsPending(int signal) {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, signal) == 1;
}

bool IsBlocked(int signal) {
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 1;
}

class FileSizeSignalTest : public testing::Test {
 protected:
  FileSizeSignalTest() {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeSignalTest() override { setrlimit(RLIMIT_FSIZE, &before_); }

  // If nothing blocks the signal, this kills the test.
  int GrowBeyondLimit() {
    const UniqueFd fd(memfd_create("beyond", MFD_CLOEXEC));
    return ftruncate(fd.get(), 8192) == 0 ? 0 : errno;
  }

 private:
  rlimit before_{};
};

TEST_F(FileSizeSignalTest, BeyondTheLimitIsAnErrno) {
  {
    const FileSizeSignalBlocked blocked;
    EXPECT_EQ(GrowBeyondLimit(), EFBIG);
    EXPECT_TRUE(IsPending(SIGXFSZ));
  }
  EXPECT_FALSE(IsPending(SIGXFSZ));
  EXPECT_FALSE(IsBlocked(SIGXFSZ));
}

TEST_F(FileSizeSignalTest, OneThatWasPendingBeforeStays) {
  const FileSizeSignalBlocked outer;
  ASSERT_EQ(GrowBeyondLimit(), EFBIG);
  {
    const FileSizeSignalBlocked inner;
    EXPECT_EQ(GrowBeyondLimit(), EFBIG);
  }
  EXPECT_TRUE(IsPending(SIGXFSZ));
  EXPECT_TRUE(IsBlocked(SIGXFSZ));
}

}  // namespace
}  // namespace waybill
