// SPDX-License-Identifier: Apache-2.0

#include "core/control/job_token.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/new_file.h"
#include "core/base/random_bits.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/net/tcp_socket.h"

namespace waybill {
namespace {

constexpr absl::string_view kRemedy =
    "; set WAYBILL_TOKEN to the same secret for all processes of the job (`openssl rand -hex 16` "
    "makes one)";

// The size of the longest file of a token.
constexpr size_t kMostTokenBytes = 64 << 10;

absl::Status Refusal(const std::string& path, absl::string_view why) {
  return absl::UnauthenticatedError(
      absl::StrCat("no token is given, and the user's own, ", path, ", ", why, kRemedy));
}

// Creates the file unless it exists. Only one process's file gets the name, and with its whole
// content, because link() does not replace a file.
absl::Status Make(const std::string& path) {
  WAYBILL_ASSIGN_OR_RETURN(const std::string token, net::RandomSecret());
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t unique, RandomBits());
  const std::string next = absl::StrCat(path, ".", unique);
  const UniqueFd fd = OpenNewFile(next);
  if (!fd.valid()) return Refusal(path, absl::StrCat("cannot be made: ", std::strerror(errno)));
  const bool made =
      write(fd.get(), token.data(), token.size()) == static_cast<ssize_t>(token.size()) &&
      (link(next.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const absl::Status status =
      made ? absl::OkStatus()
           : Refusal(path, absl::StrCat("cannot be made: ", std::strerror(errno)));
  unlink(next.c_str());
  return status;
}

absl::StatusOr<std::string> UsersToken() {
  const std::string folder = StateFolder();
  if (folder.empty()) {
    return absl::UnauthenticatedError(absl::StrCat("no token is given, and user ", geteuid(),
                                                   " has no home directory to keep one in",
                                                   kRemedy));
  }
  const std::string path = folder + "/token";
  std::error_code ignored;  // Opening the file reports the error.
  std::filesystem::create_directories(folder, ignored);
  if (access(path.c_str(), F_OK) != 0) WAYBILL_RETURN_IF_ERROR(Make(path));
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  constexpr mode_t kOthers = 077;
  struct stat file{};
  char text[64];
  if (!fd.valid() || fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) ||
      file.st_uid != geteuid() || (file.st_mode & kOthers) != 0) {
    return Refusal(path, "is not a file that only this user can read; remove it");
  }
  const ssize_t size = read(fd.get(), text, sizeof(text));
  if (size < static_cast<ssize_t>(kLeastTokenBytes))
    return Refusal(path, "is too short; remove it");
  return std::string(text, static_cast<size_t>(size));
}

// A file that is mounted from a store of secrets may be a link that others can read as well.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(kMostTokenBytes + 1, '\0');
  const ssize_t size = fd.valid() ? read(fd.get(), text.data(), text.size()) : -1;
  if (size < 0) {
    return absl::UnauthenticatedError(
        absl::StrCat("the token's file ", path, " cannot be read: ", std::strerror(errno)));
  }
  if (static_cast<size_t>(size) > kMostTokenBytes) {
    return absl::UnauthenticatedError(
        absl::StrCat("the token's file ", path, " has more than ", kMostTokenBytes, " bytes"));
  }
  text.resize(static_cast<size_t>(size));
  return std::string(absl::StripTrailingAsciiWhitespace(text));
}

absl::StatusOr<std::string> CheckLength(const std::string& token) {
  // Anybody who reaches the controller's port can test guesses offline, at the speed of a computer.
  if (token.size() >= kLeastTokenBytes) return token;
  return absl::UnauthenticatedError(absl::StrCat("the token has ", token.size(), " bytes, and ",
                                                 kLeastTokenBytes, " are the least", kRemedy));
}

}  // namespace

std::string StateFolder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return absl::StrCat(state, "/waybill");
  const char* home = std::getenv("HOME");
  passwd entry{};
  passwd* found = nullptr;
  char texts[4096];
  // Services and cron jobs have no HOME.
  if (home == nullptr && getpwuid_r(geteuid(), &entry, texts, sizeof(texts), &found) == 0 &&
      found != nullptr) {
    home = entry.pw_dir;
  }
  return home == nullptr ? "" : absl::StrCat(home, "/.local/state/waybill");
}

absl::StatusOr<std::string> JobToken(const std::string& given) {
  if (given.empty()) return UsersToken();
  if (given[0] == '@') {
    const std::string path = given.substr(1);
    WAYBILL_ASSIGN_OR_RETURN(const std::string text, ReadTokenFile(path));
    absl::StatusOr<std::string> token = CheckLength(text);
    return token.ok() ? token : While(path, token.status());
  }
  return CheckLength(given);
}

}  // namespace waybill
