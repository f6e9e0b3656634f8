// SPDX-License-Identifier: Apache-2.0

// The decision log on disks that fail, and after crashes at any byte.

#include "core/control/decision_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace waybill {
namespace {

std::string PathOf(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  return folder + "/decisions";
}

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string lines = text.str();
  lines.resize(lines.find_last_not_of('\0') + 1);
  return lines;
}
void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

Decision Of(uint64_t version, const std::string& group = "a group") {
  return {version * 100, static_cast<uint32_t>(version), version, group};
}

// Fails the calls that it is told to.
class FailingFile final : public LogFile {
 public:
  FailingFile(int* fail_writes, int* fail_syncs, ssize_t short_bytes)
      : fail_writes_(*fail_writes), fail_syncs_(*fail_syncs), short_bytes_(short_bytes) {}

  ssize_t Write(int fd, const char* data, size_t size_bytes, off_t offset_bytes) override {
    if (fail_writes_ == 0) return LogFile::Write(fd, data, size_bytes, offset_bytes);
    --fail_writes_;
    if (short_bytes_ >= 0) {
      return LogFile::Write(fd, data, static_cast<size_t>(short_bytes_), offset_bytes);
    }
    errno = ENOSPC;
    return -1;
  }
  int Sync(int fd) override {
    if (fail_syncs_ == 0) return LogFile::Sync(fd);
    --fail_syncs_;
    errno = EIO;
    return -1;
  }

 private:
  int& fail_writes_;
  int& fail_syncs_;
  const ssize_t short_bytes_;
};

class FailingLogTest : public testing::Test {
 protected:
  std::unique_ptr<DecisionLog> Open(const std::string& path, ssize_t short_bytes = -1) {
    auto log =
        DecisionLog::Open(path, std::make_unique<FailingFile>(&writes_, &syncs_, short_bytes));
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  int writes_ = 0, syncs_ = 0;
};

TEST(DecisionLog, WhatIsForgottenIsNotFoundAgainOnceTheFileIsWrittenAnew) {
  const std::string path = PathOf("forget");
  const std::string other(200, 'b');
  {
    const auto log = DecisionLog::Open(path);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_EQ((*log)->Append(Of(5)).first, Recorded::kDurable);
    (*log)->Forget("a group");
    for (uint64_t version = 6; ReadFile(path).find(" 5 a group") != std::string::npos; ++version) {
      ASSERT_LT(version, 10'000u);
      ASSERT_EQ((*log)->Append(Of(version, other)).first, Recorded::kDurable);
    }
  }
  const auto log = DecisionLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  for (const Decision& decision : (*log)->decisions()) EXPECT_EQ(decision.group, other);
}

TEST(DecisionLog, WhatWasRecordedIsFoundAgain) {
  const std::string path = PathOf("found_again");
  {
    auto log = DecisionLog::Open(path);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_EQ((*log)->Append(Of(5)).first, Recorded::kDurable);
    EXPECT_EQ((*log)->Append(Of(6, "b")).first, Recorded::kDurable);
  }
  const auto again = DecisionLog::Open(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->decisions(), (std::vector<Decision>{Of(5), Of(6, "b")}));
}

TEST(DecisionLog, OneControllerAtATimeHasIt) {
  const std::string path = PathOf("one_controller");
  const auto log = DecisionLog::Open(path);
  ASSERT_TRUE(log.ok());
  EXPECT_EQ(DecisionLog::Open(path).status().message(),
            "decision log " + path + ": another controller has it open");
}

// A crash while the last record is written leaves any part of it.
TEST(DecisionLog, ARecordThatIsCutOffAtAnyByteIsDroppedAndTheOthersStay) {
  const std::string path = PathOf("cut_off");
  {
    auto log = DecisionLog::Open(path);
    for (const uint64_t version : {5, 6}) (void)(*log)->Append(Of(version));
  }
  const std::string whole = ReadFile(path);
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t size = last; size < whole.size(); ++size) {
    WriteFile(path, whole.substr(0, size));
    const auto log = DecisionLog::Open(path);
    ASSERT_TRUE(log.ok()) << size << ": " << log.status();
    EXPECT_EQ((*log)->decisions().size(), size + 1 == whole.size() ? 2u : 1u) << size;
    EXPECT_EQ((*log)->decisions()[0], Of(5)) << size;
  }
}

TEST(DecisionLog, AChangedByteIsNeverReadAsAnotherDecision) {
  const std::string path = PathOf("changed_byte");
  {
    auto log = DecisionLog::Open(path);
    for (const uint64_t version : {5, 6}) (void)(*log)->Append(Of(version));
  }
  const std::string whole = ReadFile(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    WriteFile(path, damaged);
    const auto log = DecisionLog::Open(path);
    if (!log.ok()) continue;
    for (const Decision& decision : (*log)->decisions()) {
      EXPECT_TRUE(decision == Of(5) || decision == Of(6)) << "byte " << i;
    }
  }
}

// Without care the kernel kills the process by SIGXFSZ, and nobody says why.
TEST(DecisionLog, ALimitOnTheSizeOfFilesIsAnErrorAndNoDeath) {
  const std::string path = PathOf("limit");
  const auto log = DecisionLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  const auto [recorded, status] = (*log)->Append(Of(5));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(recorded, Recorded::kUnknown);  // The zeros behind it failed, too.
  EXPECT_EQ(status.message(), "decision log " + path + ": write: File too large");
}

TEST_F(FailingLogTest, AFullDiskRecordsNothingAndTheNextDecisionIsWhole) {
  for (const ssize_t short_bytes : {-1, 0, 7, 30}) {
    const std::string path = PathOf("full_disk");
    {
      auto log = Open(path, short_bytes);
      ASSERT_EQ(log->Append(Of(5)).first, Recorded::kDurable);
      writes_ = 1;
      const auto [recorded, status] = log->Append(Of(6));
      EXPECT_EQ(recorded, Recorded::kNotRecorded) << short_bytes;
      EXPECT_EQ(status.message(), "decision log " + path + ": write: No space left on device");
      EXPECT_EQ(log->Append(Of(7)).first, Recorded::kDurable);
    }
    const auto again = DecisionLog::Open(path);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->decisions(), (std::vector<Decision>{Of(5), Of(7)})) << short_bytes;
  }
}

TEST_F(FailingLogTest, ADecisionThatCouldNotBeSyncedIsTakenBack) {
  const std::string path = PathOf("not_synced");
  {
    auto log = Open(path);
    syncs_ = 1;
    EXPECT_EQ(log->Append(Of(6)).first, Recorded::kNotRecorded);
  }
  const auto again = DecisionLog::Open(path);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE((*again)->decisions().empty());
}

TEST_F(FailingLogTest, WhereItCannotBeTakenBackNothingIsDecidedAnyMore) {
  auto log = Open(PathOf("unknown"));
  syncs_ = 2;  // The line is synced, and so are the zeros over it.
  EXPECT_EQ(log->Append(Of(6)).first, Recorded::kUnknown);
  EXPECT_EQ(log->Append(Of(7)).first, Recorded::kUnknown);
}

TEST(DecisionLog, ItDoesNotGrowWithTheNumberOfCommits) {
  const std::string path = PathOf("growth");
  auto log = DecisionLog::Open(path);
  ASSERT_TRUE(log.ok());
  for (uint64_t version = 1; version <= 5000; ++version) {
    ASSERT_EQ((*log)->Append(Of(version, version % 2 == 0 ? "a" : "b")).first, Recorded::kDurable);
  }
  EXPECT_LT((*log)->size_bytes(), 100'000u);
  log->reset();
  const auto again = DecisionLog::Open(path);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->decisions().size(), 8u);
  EXPECT_EQ((*again)->decisions().back(), Of(5000, "a"));
  EXPECT_LT((*again)->size_bytes(), 1000u);
}

TEST(DecisionLog, AFileThatIsSomethingElseIsLeftAlone) {
  const std::string path = PathOf("something_else");
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  WriteFile(path, "shopping: milk\n");
  EXPECT_EQ(DecisionLog::Open(path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadFile(path), "shopping: milk\n");
}

}  // namespace
}  // namespace waybill
