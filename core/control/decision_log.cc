// SPDX-License-Identifier: Apache-2.0

#include "core/control/decision_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/file_size_signal.h"
#include "core/base/new_file.h"
#include "core/base/status.h"
#include "core/control/decision_text.h"

namespace waybill {
namespace {

constexpr uint64_t kRoomBytes = 64 << 10;  // Space for lines until the next rewrite.
constexpr absl::string_view kHeader = "waybill decisions 2\n";

}  // namespace

ssize_t LogFile::Write(int fd, const char* data, size_t size_bytes, off_t offset_bytes) {
  ssize_t written = 0;
  int error = 0;
  {
    const FileSizeSignalBlocked blocked;
    written = ::pwrite(fd, data, size_bytes, offset_bytes);
    error = errno;
  }
  errno = error;
  return written;
}
int LogFile::Sync(int fd) { return ::fdatasync(fd); }

absl::Status DecisionLog::Error(absl::string_view operation) const {
  return absl::UnavailableError(
      absl::StrCat("decision log ", path_, ": ", operation, ": ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<DecisionLog>> DecisionLog::Open(const std::string& path,
                                                               std::unique_ptr<LogFile> file) {
  std::unique_ptr<DecisionLog> log(new DecisionLog);
  log->path_ = path;
  log->file_ = std::move(file);
  std::error_code ignored;  // Opening the file below reports the error.
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  // Lock another file, because the log itself is replaced when it is rewritten.
  log->lock_ = UniqueFd(::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!log->lock_.valid()) return log->Error("open its lock");
  if (flock(log->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(
        absl::StrCat("decision log ", path, ": another controller has it open"));
  }
  WAYBILL_RETURN_IF_ERROR(log->Read());
  WAYBILL_RETURN_IF_ERROR(log->Rewrite());
  return log;
}

absl::Status DecisionLog::Read() {
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) return absl::OkStatus();
  if (!fd.valid()) return Error("open");
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = ::read(fd.get(), buffer, sizeof(buffer))) != 0;) {
    if (size < 0) return Error("read");
    text.append(buffer, static_cast<size_t>(size));
  }
  // Zeros follow the last line.
  text.resize(text.find_last_not_of('\0') + 1);
  if (text.empty()) return absl::OkStatus();
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines[0] != kHeader.substr(0, kHeader.size() - 1)) {
    return absl::DataLossError(
        absl::StrCat("decision log ", path_, ": it is not one (\"", lines[0].substr(0, 80), "\")"));
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty() && i + 1 == lines.size()) break;
    const std::optional<Decision> decision = DecodeDecision(lines[i]);
    if (decision) {
      decisions_.push_back(*decision);
    } else if (i + 1 < lines.size() && !(i + 2 == lines.size() && lines[i + 1].empty())) {
      return absl::DataLossError(absl::StrCat("decision log ", path_, ": line ", i + 1,
                                              " is damaged: \"", lines[i].substr(0, 80), "\""));
    }
  }
  decisions_ = KeepLast(decisions_);
  return absl::OkStatus();
}

absl::Status DecisionLog::WriteAndSync(absl::string_view text, uint64_t offset_bytes) {
  const ssize_t written =
      file_->Write(fd_.get(), text.data(), text.size(), static_cast<off_t>(offset_bytes));
  if (written != static_cast<ssize_t>(text.size())) {
    if (written >= 0) errno = ENOSPC;
    return Error("write");
  }
  return file_->Sync(fd_.get()) == 0 ? absl::OkStatus() : Error("fdatasync");
}

// Replaces the file atomically.
absl::Status DecisionLog::Rewrite() {
  std::string text(kHeader);
  for (const Decision& decision : decisions_) text += EncodeDecision(decision);
  const uint64_t size_bytes = text.size();
  text.resize(size_bytes + kRoomBytes);
  const std::string next = path_ + ".next";
  UniqueFd fd = OpenNewFile(next);
  if (!fd.valid()) return Error("open its successor");
  std::swap(fd, fd_);  // Swapped back on failure.
  absl::Status status = WriteAndSync(text, 0);
  if (status.ok() && std::rename(next.c_str(), path_.c_str()) != 0) status = Error("rename");
  if (!status.ok()) {
    std::swap(fd, fd_);
    return status;
  }
  size_bytes_ = size_bytes;
  capacity_bytes_ = text.size();
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const UniqueFd directory(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || ::fsync(directory.get()) != 0) return Error("fsync its folder");
  return absl::OkStatus();
}

std::pair<Recorded, absl::Status> DecisionLog::Append(const Decision& decision) {
  const std::string line = EncodeDecision(decision);
  if (!broken_ && size_bytes_ + line.size() > capacity_bytes_) {
    decisions_ = KeepLast(decisions_);
    if (absl::Status status = Rewrite(); !status.ok()) {
      return {Recorded::kNotRecorded, std::move(status)};
    }
  }
  if (broken_) {
    return {Recorded::kUnknown,
            absl::UnavailableError(absl::StrCat("decision log ", path_, ": it failed before"))};
  }
  absl::Status status = WriteAndSync(line, size_bytes_);
  if (status.ok()) {
    size_bytes_ += line.size();
    decisions_.push_back(decision);
    return {Recorded::kDurable, absl::OkStatus()};
  }
  // The next controller must not read the rest of the line.
  const std::string zeros(line.size(), '\0');
  if (WriteAndSync(zeros, size_bytes_).ok()) return {Recorded::kNotRecorded, std::move(status)};
  broken_ = true;
  return {Recorded::kUnknown, std::move(status)};
}

void DecisionLog::Forget(const std::string& group) {
  std::erase_if(decisions_, [&](const Decision& decision) { return decision.group == group; });
}

}  // namespace waybill
