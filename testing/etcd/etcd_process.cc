// SPDX-License-Identifier: Apache-2.0

#include "testing/etcd/etcd_process.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/steady_now.h"
#include "core/control/grpc_deadline.h"
#include "core/net/tcp_socket.h"

namespace waybill {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

// Returns the path of a program, or "" if it is not there.
std::string FindProgram(const std::string& name) {
  const char* path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

}  // namespace

std::unique_ptr<EtcdProcess> EtcdProcess::Start() {
  if (FindProgram("etcd").empty()) return nullptr;
  std::unique_ptr<EtcdProcess> etcd(new EtcdProcess);
  etcd->folder_ = testing::TempDir() + "/etcd-XXXXXX";
  if (mkdtemp(etcd->folder_.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << etcd->folder_;
  {
    // Both are free at the same time, so they differ.
    const auto client = net::Listen({"127.0.0.1", 0});
    const auto peer = net::Listen({"127.0.0.1", 0});
    if (!client.ok() || !peer.ok()) ADD_FAILURE() << client.status() << peer.status();
    etcd->address_ = net::ToString(client->address);
    etcd->peer_address_ = net::ToString(peer->address);
  }
  etcd->Restart();
  return etcd;
}

void EtcdProcess::Kill() {
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = -1;
}

void EtcdProcess::Restart() {
  const std::string client = "http://" + address_, peer = "http://" + peer_address_;
  std::vector<std::string> words = {FindProgram("etcd"),
                                    "--data-dir",
                                    folder_,
                                    "--listen-client-urls",
                                    client,
                                    "--advertise-client-urls",
                                    client,
                                    "--listen-peer-urls",
                                    peer,
                                    "--initial-advertise-peer-urls",
                                    peer,
                                    "--initial-cluster",
                                    "default=" + peer};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string log = folder_ + ".log";
  process_ = fork();
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  grpc::ChannelArguments often;
  often.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  often.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  EXPECT_TRUE(grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), often)
                  ->WaitForConnected(ToGrpcDeadline(SteadyNow() + kPatience)))
      << "etcd does not listen on " << address_ << "; it says why in " << log;
}

}  // namespace waybill
