// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/shared_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

constexpr uint64_t kSize = 1 << 20;

// Puts the limit back when it goes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(SharedPages, LieWhereTheyCanBeHugeAndAreZeroedToTheLastByte) {
  constexpr uint64_t kHugePageBytes = 2 << 20;
  for (const uint64_t size_bytes :
       {kHugePageBytes, kHugePageBytes + 1, 3 * kHugePageBytes - 1, 5 * kHugePageBytes}) {
    SharedPages pages = *SharedPages::Create(size_bytes, "weights");
    const SharedPages peers = *SharedPages::FromPeer(UniqueFd(dup(pages.fd())), size_bytes);
    for (const std::byte* const data : {pages.data(), peers.data()}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kHugePageBytes, 0u);
      EXPECT_TRUE(
          std::all_of(data, data + size_bytes, [](std::byte b) { return b == std::byte{}; }));
    }
    std::memset(pages.data(), 0x42, size_bytes);
    EXPECT_EQ(peers.data()[size_bytes - 1], std::byte{0x42});
    ASSERT_TRUE(pages.Renew(Contents::kKept).ok());
    EXPECT_EQ(pages.data()[size_bytes - 1], std::byte{0x42});
  }
}

TEST(SharedPages, BeyondTheFileSizeLimitIsAnErrorAndNoSignal) {
  absl::Status status;
  {
    const FileSizeLimit limit(kSize - 1);
    status = SharedPages::Create(kSize, "weights").status();  // Unblocked, SIGXFSZ would kill here.
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "allocate \"weights\" (1048576 bytes)"))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "RLIMIT_FSIZE is 1048575 bytes")) << status;
  EXPECT_TRUE(SharedPages::Create(kSize, "weights").ok());
}

TEST(SharedPages, TheSignalStaysAsItWas) {
  sigset_t before, after, pending;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    const FileSizeLimit limit(kSize - 1);
    EXPECT_FALSE(SharedPages::Create(kSize, "weights").ok());
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGXFSZ), sigismember(&after, SIGXFSZ));
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 0);
}

TEST(SharedPages, ARenewalBeyondTheLimitLeavesThePagesAsTheyAre) {
  SharedPages pages = *SharedPages::Create(kSize, "weights");
  std::memset(pages.data(), 0x42, kSize);
  {
    const FileSizeLimit limit(kSize - 1);
    for (const Contents contents : {Contents::kKept, Contents::kZeroed}) {
      EXPECT_EQ(pages.Renew(contents).code(), absl::StatusCode::kResourceExhausted);
    }
  }
  EXPECT_EQ(pages.data()[kSize - 1], std::byte{0x42});
  EXPECT_TRUE(pages.Renew(Contents::kKept).ok());
  EXPECT_EQ(pages.data()[kSize - 1], std::byte{0x42});
}

TEST(SharedPages, MoreThanTheHostHasIsRefusedBeforeItIsTried) {
  for (const uint64_t size : {uint64_t{1} << 50, uint64_t{1} << 62}) {
    const absl::Status status = SharedPages::Create(size, "weights").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(absl::StrContains(status.message(),
                                  absl::StrCat("allocate \"weights\" (", size, " bytes): ")))
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "allows ")) << status;
  }
}

TEST(SharedPages, APeersPagesAreTheSameBytes) {
  SharedPages pages = *SharedPages::Create(kSize, "weights");
  SharedPages peer = *SharedPages::FromPeer(UniqueFd(dup(pages.fd())), kSize);
  std::memset(peer.data(), 0x17, kSize);
  EXPECT_EQ(pages.data()[kSize - 1], std::byte{0x17});
  ASSERT_TRUE(pages.Renew(Contents::kZeroed).ok());
  EXPECT_EQ(pages.data()[kSize - 1], std::byte{0});
  EXPECT_EQ(peer.data()[kSize - 1], std::byte{0x17});
}

TEST(SharedPages, PagesThatCouldShrinkOrHaveAnotherSizeAreRefused) {
  UniqueFd loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), 4096), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SharedPages::FromPeer(std::move(loose), 4096).status()));
  const SharedPages pages = *SharedPages::Create(kSize, "weights");
  EXPECT_TRUE(absl::IsInvalidArgument(
      SharedPages::FromPeer(UniqueFd(dup(pages.fd())), kSize + 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SharedPages::FromPeer(UniqueFd(-1), kSize).status()));
}

}  // namespace
}  // namespace waybill
