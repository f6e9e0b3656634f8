#include "core/control/doorkeeper.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/net/tcp_socket.h"

namespace waybill {
namespace {

constexpr int kRetryMs = 100;  // After accept() has failed.

}  // namespace

absl::StatusOr<std::unique_ptr<Doorkeeper>> Doorkeeper::Listen(const std::string& address) {
  WAYBILL_ASSIGN_OR_RETURN(net::HostPort at, net::ParseHostPort(address));
  WAYBILL_ASSIGN_OR_RETURN(at.host, net::NumericAddress(at.host));
  WAYBILL_ASSIGN_OR_RETURN(net::Listener listener, net::Listen(at));
  std::unique_ptr<Doorkeeper> doorkeeper(new Doorkeeper);
  doorkeeper->listener_ = std::move(listener.socket);
  doorkeeper->port_ = listener.address.port;
  doorkeeper->end_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorkeeper->end_.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("listen on ", address, ": eventfd: ", std::strerror(errno)));
  }
  return doorkeeper;
}

Doorkeeper::~Doorkeeper() {
  if (!thread_.joinable()) return;
  (void)eventfd_write(end_.get(), 1);
  thread_.join();
}

void Doorkeeper::Start(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void Doorkeeper::Run() {
  pollfd watched[] = {{end_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  bool wait = false;  // The listener stays readable while accept() fails.
  while (true) {
    const int ready = wait ? poll(watched, 1, kRetryMs) : poll(watched, 2, -1);
    if (ready > 0 && (watched[0].revents & POLLIN) != 0) return;
    UniqueFd connection = net::Accept(listener_.get());
    wait = !connection.valid();
    if (wait) continue;
    Acceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listener_.get();
    parameters.fd = connection.Release();
    acceptor_->HandleNewConnection(&parameters);
  }
}

}  // namespace waybill
