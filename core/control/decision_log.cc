#include "core/control/decision_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"

namespace waybill {
namespace {

absl::Status FileError(absl::string_view operation, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("decision log ", path, ": ", operation, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecisionLog>> DecisionLog::Open(const std::string& path) {
  auto log = std::make_unique<DecisionLog>();
  log->path_ = path;
  std::error_code ignored;  // The open below tells what is wrong.
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  log->fd_ = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log->fd_.valid()) return FileError("open", path);
  if (flock(log->fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(
        absl::StrCat("decision log ", path, ": another controller has it open"));
  }
  WAYBILL_RETURN_IF_ERROR(log->Read());
  return log;
}

absl::Status DecisionLog::Read() {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = ::read(fd_.get(), buffer, sizeof(buffer))) != 0;) {
    if (size < 0) return FileError("read", path_);
    text.append(buffer, static_cast<size_t>(size));
  }
  const size_t end = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (end < text.size() && ftruncate(fd_.get(), static_cast<off_t>(end)) != 0) {
    return FileError("ftruncate", path_);
  }
  text.resize(end);
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 4));
    Decision decision;
    if (words.size() == 2 && words[0] == "epoch" && absl::SimpleAtoi(words[1], &last_epoch_)) {
      continue;
    }
    if (words.size() == 5 && words[0] == "commit" && absl::SimpleAtoi(words[1], &decision.epoch) &&
        absl::SimpleAtoi(words[2], &decision.sequence) &&
        absl::SimpleAtoi(words[3], &decision.version)) {
      decision.group = words[4];
      decisions_.push_back(std::move(decision));
      continue;
    }
    return absl::DataLossError(absl::StrCat("decision log ", path_, ": \"", line, "\""));
  }
  return absl::OkStatus();
}

absl::Status DecisionLog::Append(const std::string& line) {
  const ssize_t written = ::write(fd_.get(), line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) return FileError("write", path_);
  return fdatasync(fd_.get()) == 0 ? absl::OkStatus() : FileError("fdatasync", path_);
}

absl::Status DecisionLog::BeginEpoch(uint64_t epoch) {
  WAYBILL_RETURN_IF_ERROR(Append(absl::StrCat("epoch ", epoch, "\n")));
  last_epoch_ = epoch;
  return absl::OkStatus();
}

absl::Status DecisionLog::Commit(const Decision& decision) {
  WAYBILL_RETURN_IF_ERROR(Append(absl::StrCat("commit ", decision.epoch, " ", decision.sequence,
                                              " ", decision.version, " ", decision.group, "\n")));
  decisions_.push_back(decision);
  return absl::OkStatus();
}

}  // namespace waybill
