// SPDX-License-Identifier: Apache-2.0

// TCP sockets between ranks, none of which ever blocks.
#ifndef WAYBILL_CORE_NET_TCP_SOCKET_H_
#define WAYBILL_CORE_NET_TCP_SOCKET_H_

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"

namespace waybill::net {

// An address to listen at: a numeric IPv4 or IPv6 address, and a port.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
std::string ToString(const HostPort& address);  // "10.0.0.1:7070", "[fe80::1%eth0]:7070".
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// The first numeric address of a host by name; kInvalidArgument: it is unknown.
absl::StatusOr<std::string> NumericAddress(const std::string& host);

// This host's address on the way to `host` (a name or an address): what a peer that talks to `host`
// can most likely reach us by. Nothing is sent. If `host` is a name of this host itself, it is the
// address on the way to other networks.
absl::StatusOr<std::string> OwnAddressTowards(const std::string& host);

// A host to which OwnAddressTowards() gives the address on the way to other networks.
inline constexpr char kAnotherNetwork[] = "192.0.2.1";

// Returns true if `host` is a name of this host that stands for loopback, as Debian's /etc/hosts
// has it, so that other hosts cannot reach `address`; false for localhost and for addresses.
bool HidesBehindLoopback(const std::string& host, const std::string& address);

// 128 bits that nobody can guess, as 32 hexadecimal digits.
absl::StatusOr<std::string> RandomSecret();

// The address of the other end of a connection, as ToString() has it; empty: it is not known.
std::string PeerName(int socket);

// Raises the soft limit of open files to the hard one, and returns it. The usual soft limit of
// 1,024 protects programs that use select() on high descriptors, which nothing here does.
size_t RaiseLimitOfOpenFiles();

struct Listener {
  UniqueFd socket;
  HostPort address;  // Has the port that the system chose if 0 was asked for.
};
absl::StatusOr<Listener> Listen(const HostPort& address);

// Invalid where nobody waits.
UniqueFd Accept(int listener);

// Begins to connect: writable when it is through; FinishConnect() then says how it went. `from`:
// the own numeric address to do it from, and so the way out of this host where each address has its
// own; empty, or one that can't lead there (loopback, another family): what the system chooses.
absl::StatusOr<UniqueFd> BeginConnect(const HostPort& address, const std::string& from = "");
absl::Status FinishConnect(int socket, const HostPort& address);  // kUnavailable: in vain.

// How many bytes went or came: 0 where the socket is full or empty. kAborted: the peer is gone.
absl::StatusOr<size_t> Send(int socket, absl::Span<const std::byte> bytes);
absl::StatusOr<size_t> Receive(int socket, absl::Span<std::byte> buffer);
// The same of several pieces of memory, in order; not of none.
absl::StatusOr<size_t> SendParts(int socket, absl::Span<const iovec> parts);
absl::StatusOr<size_t> ReceiveParts(int socket, absl::Span<const iovec> parts);

// The socket is readable, for who waits, when so many bytes are there (or its end is): fewer wakes.
absl::Status SetReadableAt(int socket, int size_bytes);

// Takes all that has come, and keeps none of it.
absl::Status Discard(int socket);

// While nothing is under way: no reply to probes for `seconds` ends the connection.
absl::Status SetKeepAlive(int socket, int seconds);
// While something is: whether the peer's host owes an answer, and how long it has given none. A
// peer that does not read still answers.
struct Answers {
  bool are_owed = false;
  std::chrono::milliseconds last_ago{0};
};
Answers AnswersOf(int socket);

}  // namespace waybill::net

#endif  // WAYBILL_CORE_NET_TCP_SOCKET_H_
