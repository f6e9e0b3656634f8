// SPDX-License-Identifier: Apache-2.0

// The log of a controller: a line for each rank that joins or goes, and for each update.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_EVENT_LOG_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_EVENT_LOG_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "tools/waybill/observe/update_watch.h"

namespace waybill {

enum class LogFormat : uint8_t {
  kNone,
  kText,  // 2026-11-29T12:00:00.000Z INFO update job=rl group=rollout version=7 outcome=committed
          // ...
  kJson,  // One object in each line, with the same fields.
};

// Writes from a thread of its own, so that a reader who does not read delays nobody: lines that
// have no room any more are counted, and the next line says how many. Thread-safe.
class EventLog final : public WatchListener {
 public:
  static constexpr size_t kMostLines = 1024;  // The most lines that wait to be written.

  // `descriptor` stays open until the log's end, which waits for a reader for `patience` at most.
  EventLog(LogFormat format, std::string job, int descriptor,
           absl::Duration patience = absl::Seconds(1));
  ~EventLog() override;

  void OnRankJoined(const UpdateWatch::Rank& rank) override;
  void OnRankGone(const UpdateWatch::Rank& rank) override;
  void OnUpdateEnded(const UpdateWatch::Progress& update) override;

 private:
  using Fields = nlohmann::ordered_json;

  void Add(const char* level, const char* event, const Fields& fields);
  std::string Line(const char* level, const char* event, const Fields& fields) const;
  void Write();
  // Returns false once the log ends and nobody reads, or the descriptor cannot be written.
  bool WriteLine(const std::string& line);

  const LogFormat format_;
  const std::string job_;
  const int descriptor_;
  const absl::Duration patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  uint64_t dropped_ = 0;
  absl::Time ends_at_ = absl::InfiniteFuture();
  std::thread thread_;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_EVENT_LOG_H_
