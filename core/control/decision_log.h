// SPDX-License-Identifier: Apache-2.0

// Keeps the decisions to commit in a file. A decision is on disk before any rank learns of it.
#ifndef WAYBILL_CORE_CONTROL_DECISION_LOG_H_
#define WAYBILL_CORE_CONTROL_DECISION_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"
#include "core/control/decision_store.h"
#include "core/protocol/decision.h"

namespace waybill {

// The system calls that fail when a disk fails; tests replace them.
class LogFile {
 public:
  virtual ~LogFile() = default;
  // Each returns -1 and sets errno on failure, like the system call of its name.
  virtual ssize_t Write(int fd, const char* data, size_t size_bytes, off_t offset_bytes);
  virtual int Sync(int fd);
};

// One line for each commit, with a checksum. Only the last decisions of each group matter (see
// Coordinator), so the file is written anew when it is opened and when it is full.
//
// Lines are written over zeros that are on disk already. The file never changes its size, so a sync
// waits for the data alone, and not for the file system's journal.
//
// Only one controller at a time can open the file. Not thread-safe.
class DecisionLog final : public DecisionStore {
 public:
  // Opens or creates the file, and its folder if need be. An incomplete last line, left by a crash
  // during a write, was never reported as durable, and is dropped.
  //
  // kUnavailable: another controller has the file open, or it cannot be read or written; kDataLoss:
  // a line before the last one is not a record.
  static absl::StatusOr<std::unique_ptr<DecisionLog>> Open(
      const std::string& path, std::unique_ptr<LogFile> file = std::make_unique<LogFile>());

  // Appends a decision. kDurable: the decision is on disk. kNotRecorded: writing failed, and the
  // file is unchanged. kUnknown: writing failed, and so did erasing what was written in part.
  std::pair<Recorded, absl::Status> Append(const Decision& decision) override;

  // The decisions leave the file at its next rewrite.
  void Forget(const std::string& group) override;

  const std::vector<Decision>& decisions() const override { return decisions_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  DecisionLog() = default;
  absl::Status Read();
  absl::Status Rewrite();
  // Writes `text` at `offset_bytes` and syncs the file.
  absl::Status WriteAndSync(absl::string_view text, uint64_t offset_bytes);
  absl::Status Error(absl::string_view operation) const;

  std::string path_;
  std::unique_ptr<LogFile> file_;
  UniqueFd lock_;
  UniqueFd fd_;
  uint64_t size_bytes_ = 0;      // The end of the last line.
  uint64_t capacity_bytes_ = 0;  // The size of the file.
  bool broken_ = false;
  std::vector<Decision> decisions_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_DECISION_LOG_H_
