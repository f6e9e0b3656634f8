// SPDX-License-Identifier: Apache-2.0

// Sockets between processes of one host and one user, with file descriptors along.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_UNIX_SOCKET_H_
#define WAYBILL_CORE_FABRIC_LOCAL_UNIX_SOCKET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"

namespace waybill::local {

// Listens at an abstract name (no file, gone with the socket). Non-blocking.
absl::StatusOr<UniqueFd> Listen(const std::string& name);

// kUnavailable: nobody listens there.
absl::StatusOr<UniqueFd> Connect(const std::string& name);

// Invalid where nobody waits. A peer of another user is turned away.
UniqueFd Accept(int listener);

// The most descriptors that a message brings along.
inline constexpr size_t kMostDescriptors = 2;

// Sends one message, with these descriptors along. kUnavailable: the socket is full, or too many
// descriptors of this user are on their way; try again. kAborted: the peer is gone.
absl::Status Send(int socket, absl::Span<const std::byte> message, absl::Span<const int> fds);

struct Received {
  size_t size_bytes = 0;
  std::array<UniqueFd, kMostDescriptors> fds;  // The first ones are valid, as many as came.
};
// kUnavailable: nothing is there; kAborted: the peer is gone; kDataLoss: the message is longer than
// the buffer, or brings more descriptors than that. None of its descriptors stays open then.
absl::StatusOr<Received> Receive(int socket, absl::Span<std::byte> buffer);

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_UNIX_SOCKET_H_
