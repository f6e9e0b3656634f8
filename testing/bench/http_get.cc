// SPDX-License-Identifier: Apache-2.0

#include "testing/bench/http_get.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace waybill {

absl::StatusOr<size_t> HttpGet(const net::HostPort& server, const std::string& path) {
  WAYBILL_ASSIGN_OR_RETURN(const UniqueFd socket, net::BeginConnect(server));
  const int flags = fcntl(socket.get(), F_GETFL);
  fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK);
  pollfd connecting{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  poll(&connecting, 1, -1);
  WAYBILL_RETURN_IF_ERROR(net::FinishConnect(socket.get(), server));
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: bench\r\n\r\n");
  if (write(socket.get(), request.data(), request.size()) < 0) {
    return absl::ErrnoToStatus(errno, "ask for " + path);
  }
  size_t bytes = 0;
  char buffer[1 << 16];
  for (ssize_t got; (got = read(socket.get(), buffer, sizeof(buffer))) > 0;) {
    bytes += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace waybill
