// SPDX-License-Identifier: Apache-2.0

#include "core/control/doorkeeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/net/tcp_socket.h"

namespace waybill {
namespace {

constexpr int kRetryMs = 100;  // The pause after accept() has failed.

// Normalises a peer's name, which gRPC and we write differently.
std::string Bare(const std::string& peer) {
  return absl::StrReplaceAll(peer, {{"ipv4:", ""},
                                    {"ipv6:", ""},
                                    {"%5B", ""},
                                    {"%5D", ""},
                                    {"[", ""},
                                    {"]", ""},
                                    {"::ffff:", ""}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Doorkeeper>> Doorkeeper::Listen(const std::string& address,
                                                               const Limits& limits) {
  WAYBILL_ASSIGN_OR_RETURN(net::HostPort at, net::ParseHostPort(address));
  WAYBILL_ASSIGN_OR_RETURN(at.host, net::NumericAddress(at.host));
  WAYBILL_ASSIGN_OR_RETURN(net::Listener listener, net::Listen(at));
  std::unique_ptr<Doorkeeper> doorkeeper(new Doorkeeper(limits));
  doorkeeper->listener_ = std::move(listener.socket);
  doorkeeper->port_ = listener.address.port;
  doorkeeper->end_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorkeeper->end_.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("listen on ", address, ": eventfd: ", std::strerror(errno)));
  }
  return doorkeeper;
}

Doorkeeper::~Doorkeeper() { Stop(); }

void Doorkeeper::Stop() {
  if (!thread_.joinable()) return;
  (void)eventfd_write(end_.get(), 1);
  thread_.join();
  acceptor_.reset();
}

void Doorkeeper::Start(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void Doorkeeper::Run() {
  pollfd watched[] = {{end_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  bool wait = false;  // The listener stays readable while accept() fails.
  while (true) {
    const int ready = wait ? poll(watched, 1, kRetryMs) : poll(watched, 2, ForgetExpired());
    if (ready > 0 && (watched[0].revents & POLLIN) != 0) return;
    UniqueFd connection = net::Accept(listener_.get());
    wait = !connection.valid();
    if (wait) continue;
    Note(connection.get());
    Acceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listener_.get();
    parameters.fd = connection.Release();
    acceptor_->HandleNewConnection(&parameters);
  }
}

void Doorkeeper::Note(int connection) {
  UniqueFd copy(fcntl(connection, F_DUPFD_CLOEXEC, 0));
  const std::lock_guard lock(mutex_);
  if (!strangers_.empty() && (strangers_.size() >= limits_.strangers || !copy.valid())) {
    shutdown(strangers_.front().copy.get(), SHUT_RDWR);  // gRPC closes its descriptor then.
    strangers_.pop_front();
  }
  if (!copy.valid()) return;
  strangers_.push_back(
      {Bare(net::PeerName(connection)), std::move(copy), SteadyNow() + limits_.patience});
}

int Doorkeeper::ForgetExpired() {
  const absl::Time now = SteadyNow();
  const std::lock_guard lock(mutex_);
  while (!strangers_.empty() && strangers_.front().deadline <= now) strangers_.pop_front();
  if (strangers_.empty()) return -1;
  return static_cast<int>(absl::ToInt64Milliseconds(strangers_.front().deadline - now)) + 1;
}

void Doorkeeper::OnProved(const std::string& peer) {
  const std::string plain = Bare(peer);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(strangers_.begin(), strangers_.end(),
                                  [&](const Stranger& s) { return s.peer == plain; });
  if (found != strangers_.end()) strangers_.erase(found);
}

}  // namespace waybill
