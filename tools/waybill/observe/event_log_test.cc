// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/event_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

#include "core/base/unique_fd.h"

namespace waybill {
namespace {

using testing::MatchesRegex;

// The log writes to a pipe.
class EventLogTest : public testing::Test {
 protected:
  EventLogTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    read_ = UniqueFd(ends[0]);
    write_ = UniqueFd(ends[1]);
  }

  // Returns everything that the log has written. Call it after the log's end.
  std::string ReadAll() {
    write_.Reset();
    std::string all;
    char buffer[4096];
    for (ssize_t got; (got = read(read_.get(), buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<size_t>(got));
    }
    return all;
  }

  static UpdateWatch::Progress Update(const std::string& error = "") {
    return {.group = "rollout a",
            .version = 7,
            .workers = 2,
            .arrived = 2,
            .parts = {{"wait", absl::Milliseconds(1)}, {"prepare", absl::Milliseconds(20)}},
            .total = absl::Milliseconds(21),
            .error = error};
  }

  UniqueFd read_, write_;
};

TEST_F(EventLogTest, ATextLineHasTheFieldsAsWords) {
  {
    EventLog log(LogFormat::kText, "rl", write_.get());
    log.OnRankJoined({"trainer 0", ""});
    log.OnUpdateEnded(Update());
    log.OnUpdateEnded(Update("worker \"1\"\nis gone\x1b[2J"));
  }
  EXPECT_THAT(
      ReadAll(),
      MatchesRegex("[0-9T:.-]+Z INFO joined job=rl rank=\"trainer 0\"\n"
                   "[0-9T:.-]+Z INFO update job=rl group=\"rollout a\" version=7 outcome=committed "
                   "workers=2 seconds=0.021 wait=0.001 prepare=0.02\n"
                   "[0-9T:.-]+Z WARNING update job=rl group=\"rollout a\" version=7 outcome=failed "
                   "workers=2 seconds=0.021 wait=0.001 prepare=0.02 "
                   "error=\"worker .\"1.\".nis gone.u001b.2J\"\n"));
}

TEST_F(EventLogTest, AJsonLineHasTheSameFields) {
  {
    EventLog log(LogFormat::kJson, "rl", write_.get());
    log.OnUpdateEnded(Update("it was \xff\xe2\x80\xae"));
  }
  nlohmann::json line = nlohmann::json::parse(ReadAll());
  EXPECT_EQ(line["time"].get<std::string>().size(), std::string("2026-11-29T12:00:00.000Z").size());
  line.erase("time");
  EXPECT_EQ(line, nlohmann::json::parse(R"({"level": "WARNING", "event": "update", "job": "rl",
      "group": "rollout a", "version": 7, "outcome": "failed", "workers": 2, "seconds": 0.021,
      "wait": 0.001, "prepare": 0.02, "error": "it was \ufffd\u202e"})"));
}

TEST_F(EventLogTest, NoneWritesNothing) {
  {
    EventLog log(LogFormat::kNone, "rl", write_.get());
    log.OnUpdateEnded(Update());
  }
  EXPECT_EQ(ReadAll(), "");
}

TEST_F(EventLogTest, AReaderWhoDoesNotReadDelaysNobodyAndIsToldWhatItMissed) {
  // A pipe holds 64 KiB: more than these lines cannot be written.
  constexpr size_t kLines = 4 * EventLog::kMostLines;
  size_t written = 0;
  {
    EventLog log(LogFormat::kJson, "rl", write_.get());
    for (size_t i = 0; i < kLines; ++i) log.OnUpdateEnded(Update());
    char buffer[4096];
    std::string line;
    // Reads until it has heard of the others.
    while (line.find("\"dropped\"") == std::string::npos) {
      const ssize_t got = read(read_.get(), buffer, sizeof(buffer));
      ASSERT_GT(got, 0);
      line.append(buffer, static_cast<size_t>(got));
    }
    for (const char c : line) written += c == '\n' ? 1 : 0;
    const size_t at = line.find("\"lines\":");
    ASSERT_NE(at, std::string::npos);
    const size_t dropped = std::stoul(line.substr(at + 8));
    EXPECT_EQ(written - 1 + dropped, kLines);
  }
}

TEST_F(EventLogTest, TheEndOfTheLogDoesNotWaitForAReader) {
  EventLog log(LogFormat::kText, "rl", write_.get(), absl::ZeroDuration());
  for (size_t i = 0; i < EventLog::kMostLines; ++i) log.OnUpdateEnded(Update());
}

TEST_F(EventLogTest, AReaderWhoHasGoneEndsNobody) {
  EventLog log(LogFormat::kText, "rl", write_.get());
  read_.Reset();
  for (int i = 0; i < 10; ++i) log.OnUpdateEnded(Update());
}

}  // namespace
}  // namespace waybill
