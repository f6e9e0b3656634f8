// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/local/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waybill::local {
namespace {

constexpr int kBufferBytes = 1 << 20;

absl::Status SocketError(absl::string_view operation, int error) {
  return absl::InternalError(
      absl::StrCat(operation, ": ", std::strerror(error), " (errno ", error, ")"));
}

// An abstract name begins with a zero byte; the length says where it ends.
socklen_t FillAddress(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SocketError("socket", errno);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
  return fd;
}

bool SameUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// Keeps the first of the message's descriptors in `fds` and closes the others. Returns how many
// came.
size_t TakeDescriptors(msghdr& header, absl::Span<UniqueFd> fds) {
  size_t count = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, reinterpret_cast<const char*>(c) + at, sizeof(number));
      UniqueFd fd(number);
      if (count < fds.size()) fds[count] = std::move(fd);
      ++count;
    }
  }
  return count;
}

}  // namespace

absl::StatusOr<UniqueFd> Listen(const std::string& name) {
  absl::StatusOr<UniqueFd> fd = NewSocket();
  if (!fd.ok()) return fd;
  sockaddr_un address;
  const socklen_t size = FillAddress(name, address);
  if (bind(fd->get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return SocketError("bind", errno);
  }
  if (listen(fd->get(), SOMAXCONN) != 0) return SocketError("listen", errno);
  return fd;
}

absl::StatusOr<UniqueFd> Connect(const std::string& name) {
  absl::StatusOr<UniqueFd> fd = NewSocket();
  if (!fd.ok()) return fd;
  sockaddr_un address;
  const socklen_t size = FillAddress(name, address);
  if (connect(fd->get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("connect to local socket ", name, ": ", std::strerror(errno)));
  }
  if (!SameUser(fd->get())) {
    return absl::PermissionDeniedError(absl::StrCat("local socket ", name, " is another user's"));
  }
  return fd;
}

UniqueFd Accept(int listener) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid() && !SameUser(fd.get())) fd.Reset();
  if (fd.valid()) {
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
  }
  return fd;
}

absl::Status Send(int socket, absl::Span<const std::byte> message, absl::Span<const int> fds) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  if (!fds.empty()) {
    const size_t fds_bytes = fds.size() * sizeof(int);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds_bytes);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds_bytes);
    std::memcpy(CMSG_DATA(rights), fds.data(), fds_bytes);
  }
  while (true) {
    if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS) {
      return absl::Status(absl::StatusCode::kUnavailable, "");  // Without a text: no allocation.
    }
    if (errno == EPIPE || errno == ECONNRESET) return absl::AbortedError("the peer is gone");
    return SocketError("sendmsg", errno);
  }
}

absl::StatusOr<Received> Receive(int socket, absl::Span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t size;
  bool was_reset = false;
  while (true) {
    size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size >= 0 || (errno != EINTR && errno != ECONNRESET)) break;
    // A peer that left without reading everything: told once, and before what it had sent.
    if (errno == ECONNRESET && std::exchange(was_reset, true)) break;
  }
  if (size < 0 && errno == EAGAIN) return absl::Status(absl::StatusCode::kUnavailable, "");
  if (size == 0 || (size < 0 && errno == ECONNRESET)) return absl::AbortedError("the peer is gone");
  if (size < 0) return SocketError("recvmsg", errno);
  Received received;
  received.size_bytes = static_cast<size_t>(size);
  const size_t count = TakeDescriptors(header, absl::MakeSpan(received.fds));
  if (count > kMostDescriptors || (header.msg_flags & MSG_CTRUNC) != 0) {
    return absl::DataLossError("a frame with descriptors that are too many, or found no room");
  }
  if ((header.msg_flags & MSG_TRUNC) != 0) return absl::DataLossError("a frame is too long");
  return received;
}

}  // namespace waybill::local
