// SPDX-License-Identifier: Apache-2.0

#include "core/net/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/random_bits.h"
#include "core/base/status.h"

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44  // Newer than the headers of most distributions.
#endif

namespace waybill::net {
namespace {

absl::Status SocketError(absl::string_view operation, int error) {
  return absl::InternalError(
      absl::StrCat(operation, ": ", std::strerror(error), " (errno ", error, ")"));
}

// EPIPE and ECONNRESET: it closed the connection. ETIMEDOUT: it fell silent.
bool IsGone(int error) { return error == EPIPE || error == ECONNRESET || error == ETIMEDOUT; }

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address.host, "\" is no address of a host: ", gai_strerror(error)));
  }
  return Addresses(list);
}

absl::StatusOr<UniqueFd> NewSocket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.valid()) return fd;
  const int error = errno;
  absl::Status status = SocketError("socket", error);
  if (error != EMFILE) return status;
  return absl::InternalError(absl::StrCat(
      status.message(),
      "; this process may open no more files (ulimit -n; LimitNOFILE= in a systemd unit)"));
}

absl::Status SetOption(int socket, int level, int option, int value) {
  if (setsockopt(socket, level, option, &value, sizeof(value)) == 0) return absl::OkStatus();
  return SocketError(absl::StrCat("setsockopt ", option, " of level ", level), errno);
}

void SendAtOnce(int socket) { (void)SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1); }

absl::StatusOr<HostPort> NameOf(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host;
  std::array<char, NI_MAXSERV> port;
  const int error =
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(),
                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return absl::InternalError(gai_strerror(error));
  HostPort name{.host = host.data()};
  name.port = static_cast<uint16_t>(std::stoi(port.data()));
  return name;
}

absl::StatusOr<HostPort> OwnName(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return SocketError("getsockname", errno);
  }
  return NameOf(address, size);
}

// Where nobody listens on a port of this host, the system may choose that very port to connect
// from, and TCP lets the two meet.
bool IsConnectedToItself(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof(own);
  socklen_t peer_size = sizeof(peer);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Gives the socket the own address, but for the port, unless it can't lead there.
absl::Status BindTowards(int socket, const std::string& from, const addrinfo& to) {
  if (from.empty()) return absl::OkStatus();
  absl::StatusOr<Addresses> own = Resolve({.host = from, .port = 0}, AI_NUMERICHOST);
  if (!own.ok()) return own.status();
  const addrinfo& address = **own;
  if (address.ai_family != to.ai_family ||
      (IsLoopback(address.ai_addr) && !IsLoopback(to.ai_addr))) {
    return absl::OkStatus();
  }
  // The port is chosen when the peer is known: many connections can have the same one.
  const int on = 1;
  setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
  if (bind(socket, address.ai_addr, address.ai_addrlen) == 0) return absl::OkStatus();
  return SocketError(absl::StrCat("connect from ", from), errno);
}

}  // namespace

std::string ToString(const HostPort& address) {
  return address.host.find(':') == std::string::npos
             ? absl::StrCat(address.host, ":", address.port)
             : absl::StrCat("[", address.host, "]:", address.port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not HOST:PORT"));
  }
  absl::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return HostPort{.host = std::string(host), .port = static_cast<uint16_t>(port)};
}

absl::StatusOr<std::string> NumericAddress(const std::string& host) {
  absl::StatusOr<Addresses> list = Resolve({.host = host, .port = 9}, 0);
  if (!list.ok()) return list.status();
  sockaddr_storage address{};
  std::memcpy(&address, (*list)->ai_addr, (*list)->ai_addrlen);
  const absl::StatusOr<HostPort> name = NameOf(address, (*list)->ai_addrlen);
  if (!name.ok()) return name.status();
  return name->host;
}

namespace {

absl::StatusOr<std::string> AddressTowards(const std::string& host) {
  absl::StatusOr<Addresses> list = Resolve({.host = host, .port = 9}, 0);
  if (!list.ok()) return list.status();
  for (const addrinfo* a = list->get(); a != nullptr; a = a->ai_next) {
    // Connecting a datagram socket only asks the routing table.
    const UniqueFd fd(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() || connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0) continue;
    const absl::StatusOr<HostPort> own = OwnName(fd.get());
    if (own.ok()) return own->host;
  }
  return absl::UnavailableError(absl::StrCat("there is no route to \"", host, "\""));
}

}  // namespace

absl::StatusOr<std::string> OwnAddressTowards(const std::string& host) {
  absl::StatusOr<std::string> own = AddressTowards(host);
  if (own.ok() && HidesBehindLoopback(host, *own)) {
    absl::StatusOr<std::string> outwards = AddressTowards(kAnotherNetwork);
    if (outwards.ok()) return outwards;
  }
  return own;
}

bool HidesBehindLoopback(const std::string& host, const std::string& address) {
  if (host == "localhost" || Resolve({.host = host}, AI_NUMERICHOST).ok()) return false;
  const absl::StatusOr<Addresses> list = Resolve({.host = address}, AI_NUMERICHOST);
  return list.ok() && IsLoopback((*list)->ai_addr);
}

absl::StatusOr<std::string> RandomSecret() {
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t one, RandomBits());
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t other, RandomBits());
  return absl::StrCat(absl::Hex(one, absl::kZeroPad16), absl::Hex(other, absl::kZeroPad16));
}

std::string PeerName(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  const absl::StatusOr<HostPort> name = NameOf(address, size);
  return name.ok() ? ToString(*name) : "";
}

size_t RaiseLimitOfOpenFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  // If it fails, a socket that cannot be opened says so.
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

absl::StatusOr<Listener> Listen(const HostPort& address) {
  absl::StatusOr<Addresses> list = Resolve(address, AI_PASSIVE | AI_NUMERICHOST);
  if (!list.ok()) return list.status();
  const addrinfo& to = **list;
  absl::StatusOr<UniqueFd> fd = NewSocket(to.ai_family);
  if (!fd.ok()) return fd.status();
  const int on = 1;
  setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd->get(), to.ai_addr, to.ai_addrlen) != 0 || listen(fd->get(), SOMAXCONN) != 0) {
    return SocketError(absl::StrCat("listen on ", ToString(address)), errno);
  }
  absl::StatusOr<HostPort> own = OwnName(fd->get());
  if (!own.ok()) return own.status();
  return Listener{.socket = *std::move(fd), .address = *std::move(own)};
}

UniqueFd Accept(int listener) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) SendAtOnce(fd.get());
  return fd;
}

absl::StatusOr<UniqueFd> BeginConnect(const HostPort& address, const std::string& from) {
  absl::StatusOr<Addresses> list = Resolve(address, AI_NUMERICHOST);
  if (!list.ok()) return list.status();
  const addrinfo& to = **list;
  absl::StatusOr<UniqueFd> fd = NewSocket(to.ai_family);
  if (!fd.ok()) return fd.status();
  SendAtOnce(fd->get());
  if (absl::Status status = BindTowards(fd->get(), from, to); !status.ok()) return status;
  if (connect(fd->get(), to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(
        absl::StrCat("connect to ", ToString(address), ": ", std::strerror(errno)));
  }
  return fd;
}

absl::Status FinishConnect(int socket, const HostPort& address) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0 && IsConnectedToItself(socket)) error = ECONNREFUSED;
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("connect to ", ToString(address), ": ", std::strerror(error)));
}

absl::StatusOr<size_t> Send(int socket, absl::Span<const std::byte> bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return SendParts(socket, absl::MakeConstSpan(&part, 1));
}

absl::StatusOr<size_t> SendParts(int socket, absl::Span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  while (true) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == ENOBUFS) return size_t{0};
    if (errno == EINTR) continue;
    if (IsGone(errno)) return absl::AbortedError(std::strerror(errno));
    return SocketError("send", errno);
  }
}

absl::StatusOr<size_t> Receive(int socket, absl::Span<std::byte> buffer) {
  if (buffer.empty()) return size_t{0};
  const iovec part{buffer.data(), buffer.size()};
  return ReceiveParts(socket, absl::MakeConstSpan(&part, 1));
}

absl::StatusOr<size_t> ReceiveParts(int socket, absl::Span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  while (true) {
    const ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT);
    if (size > 0) return static_cast<size_t>(size);
    if (size == 0) return absl::AbortedError("its socket is closed");
    if (errno == EAGAIN) return size_t{0};
    if (errno == EINTR) continue;
    if (IsGone(errno)) return absl::AbortedError(std::strerror(errno));
    return SocketError("receive", errno);
  }
}

absl::Status SetReadableAt(int socket, int size_bytes) {
  return SetOption(socket, SOL_SOCKET, SO_RCVLOWAT, size_bytes);
}

absl::Status Discard(int socket) {
  while (true) {
    // Without a buffer: on TCP this throws the bytes away.
    const ssize_t size = recv(socket, nullptr, size_t{1} << 30, MSG_DONTWAIT | MSG_TRUNC);
    if (size > 0 || (size < 0 && errno == EINTR)) continue;
    if (size < 0 && errno == EAGAIN) return absl::OkStatus();
    return absl::AbortedError("its socket is closed");
  }
}

absl::Status SetKeepAlive(int socket, int seconds) {
  constexpr int kProbes = 2;  // Behind the silence that makes the first one go.
  const int interval = seconds > 3 ? seconds / (kProbes + 1) : 1;
  for (const auto& [level, option, value] : {std::tuple(SOL_SOCKET, SO_KEEPALIVE, 1),
                                             {IPPROTO_TCP, TCP_KEEPIDLE, interval},
                                             {IPPROTO_TCP, TCP_KEEPINTVL, interval},
                                             {IPPROTO_TCP, TCP_KEEPCNT, kProbes}}) {
    absl::Status status = SetOption(socket, level, option, value);
    if (!status.ok()) return status;
  }
  // Probes of a window that is shut come ever more rarely, up to two minutes apart. Kernels before
  // 6.15 leave it so.
  (void)SetOption(socket, IPPROTO_TCP, TCP_RTO_MAX_MS, interval * 1000);
  return absl::OkStatus();
}

Answers AnswersOf(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return {.are_owed = info.tcpi_unacked > 0 || info.tcpi_probes > 0,
          .last_ago = std::chrono::milliseconds(info.tcpi_last_ack_recv)};
}

}  // namespace waybill::net
