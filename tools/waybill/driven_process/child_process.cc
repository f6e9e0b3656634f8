// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/driven_process/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"

extern char** environ;

namespace waybill {
namespace {

absl::StatusOr<std::string> OwnProgram() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("/proc/self/exe: ", error.message()));
  return path.string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    std::string name, std::vector<std::string> arguments, const std::vector<std::string>& wrapper) {
  auto child = std::make_unique<ChildProcess>();
  child->name_ = std::move(name);
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) return absl::InternalError("pipe");
  const UniqueFd child_in(in[0]);
  child->to_ = UniqueFd(in[1]);
  if (pipe2(out, O_CLOEXEC) != 0) return absl::InternalError("pipe");
  child->from_ = UniqueFd(out[0]);
  const UniqueFd child_out(out[1]);
  WAYBILL_ASSIGN_OR_RETURN(const std::string self, OwnProgram());
  arguments.insert(arguments.begin(), self);
  arguments.insert(arguments.begin(), wrapper.begin(), wrapper.end());
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_out.get(), STDOUT_FILENO);
  const int error = posix_spawnp(&child->pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::InternalError(absl::StrCat("start ", child->name_, ": ", std::strerror(error)));
  }
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  to_.Reset();
  // Its output ends when it does.
  const absl::Time deadline = SteadyNow() + absl::Seconds(5);
  while (ReadLine(deadline).ok()) {
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::Status ChildProcess::Send(const std::string& command) {
  const std::string line = command + "\n";
  if (write(to_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return DescribeEnd();
  }
  return absl::OkStatus();
}

void ChildProcess::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

absl::Status ChildProcess::DescribeEnd() {
  int status = 0;
  const pid_t ended = waitpid(pid_, &status, 0);
  if (ended == pid_) pid_ = -1;
  return absl::UnavailableError(
      absl::StrCat(name_, ": its process has ended, ",
                   WIFSIGNALED(status) ? absl::StrCat("killed by signal ", WTERMSIG(status))
                                       : absl::StrCat("exit status ", WEXITSTATUS(status))));
}

absl::StatusOr<std::string> ChildProcess::ReadLine(absl::Time deadline) {
  while (true) {
    if (const size_t end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    pollfd waiting{.fd = from_.get(), .events = POLLIN, .revents = 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - SteadyNow());
    const int ready = poll(&waiting, 1, static_cast<int>(std::max<int64_t>(0, left)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return absl::DeadlineExceededError(absl::StrCat(name_, ": no answer in time"));
    char bytes[4096];
    const ssize_t size = read(from_.get(), bytes, sizeof(bytes));
    if (size <= 0) return absl::UnavailableError("its output has ended");
    buffered_.append(bytes, static_cast<size_t>(size));
  }
}

absl::StatusOr<nlohmann::json> ChildProcess::Await(const std::string& event, absl::Time deadline) {
  while (true) {
    const absl::StatusOr<std::string> line = ReadLine(deadline);
    if (absl::IsUnavailable(line.status())) return DescribeEnd();
    if (!line.ok()) return While(absl::StrCat("await \"", event, "\""), line.status());
    nlohmann::json json = nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("event", "") != event) continue;
    if (json.contains("error")) {
      return absl::AbortedError(absl::StrCat(name_, ": ", json["error"].get<std::string>()));
    }
    return json;
  }
}

}  // namespace waybill
