// SPDX-License-Identifier: Apache-2.0

#include "testing/fault_drills/peer_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

extern char** environ;

namespace waybill::drills {
namespace {

constexpr int kPatienceMs = 60'000;  // Limits the test itself, not the product.

void AwaitState(pid_t pid, int options) {
  int status = 0;
  while (waitpid(pid, &status, options) < 0 && errno == EINTR) {
  }
}

}  // namespace

PeerProcess::PeerProcess(const std::string& network, uint32_t node) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string role = "--peer", on = network, where = absl::StrCat(node);
  char* argv[] = {program.data(), role.data(), on.data(), where.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
  EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
}

std::vector<std::string> PeerProcess::Ask(const std::string& command) {
  const std::string line = command + "\n";
  EXPECT_EQ(send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(line.size()));
  size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    char bytes[4096];
    ssize_t size = 0;
    if (poll(&waiting, 1, kPatienceMs) == 1) size = read(socket_.get(), bytes, sizeof(bytes));
    if (size <= 0) {
      ADD_FAILURE() << "no answer to \"" << command << "\"";
      return std::vector<std::string>(8, "0");
    }
    received_.append(bytes, static_cast<size_t>(size));
  }
  std::vector<std::string> words = absl::StrSplit(received_.substr(0, end), ' ');
  received_.erase(0, end + 1);
  EXPECT_EQ(words[0], "ok") << command << ": " << words.back();
  words.erase(words.begin());
  words.resize(std::max<size_t>(words.size(), 8), "0");
  return words;
}

LaneState PeerProcess::State(uint32_t lane) {
  const std::vector<std::string> words = Ask(absl::StrCat("state ", lane));
  const auto number = [&](size_t i) { return std::strtoull(words[i].c_str(), nullptr, 10); };
  return {number(0), number(1), number(2), number(3), number(4), number(5), number(6)};
}

void PeerProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  AwaitState(pid_, 0);
  pid_ = -1;
}

void PeerProcess::Stop() {
  kill(pid_, SIGSTOP);
  AwaitState(pid_, WUNTRACED);
}

void PeerProcess::GoOn() {
  kill(pid_, SIGCONT);
  AwaitState(pid_, WCONTINUED);
}

}  // namespace waybill::drills
