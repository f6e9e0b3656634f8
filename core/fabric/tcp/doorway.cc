// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/doorway.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/status.h"

namespace waybill::tcp {

absl::Status Doorway::Open(const net::HostPort& address) {
  WAYBILL_ASSIGN_OR_RETURN(listener_, net::Listen(address));
  return loop_.Watch(listener_.socket.get(), kListener);
}

bool Doorway::Accept() {
  constexpr int kMostAtOnce = 64;
  for (int i = 0; i < kMostAtOnce; ++i) {
    UniqueFd socket = net::Accept(listener_.socket.get());
    if (!socket.valid()) return true;
    ++counts.accepted;
    // Whoever means it says so at once: the one who has waited longest is the likeliest stranger.
    if (guests_.size() >= most_guests_) {
      if (!guests_.begin()->second.is_leaving) ++counts.silent;
      guests_.erase(guests_.begin());
    }
    const Ticket ticket = ++last_ticket_;
    if (!loop_.Watch(socket.get(), ticket).ok()) continue;
    guests_[ticket] = {.socket = std::move(socket), .deadline = Deadline(), .hello = {}};
  }
  return false;
}

std::optional<Arrival> Doorway::Look(Ticket ticket) {
  const auto found = guests_.find(ticket);
  if (found == guests_.end()) return std::nullopt;
  Guest& guest = found->second;
  if (guest.is_leaving) {
    if (!net::Discard(guest.socket.get()).ok()) guests_.erase(found);
    return std::nullopt;
  }
  // No more than the hello: what is behind it is the lane's to read.
  while (guest.received_bytes < guest.hello.size()) {
    const absl::StatusOr<size_t> received =
        net::Receive(guest.socket.get(), absl::MakeSpan(guest.hello).subspan(guest.received_bytes));
    if (!received.ok()) {
      ++(guest.received_bytes > 0 ? counts.refused : counts.silent);
      guests_.erase(found);
      return std::nullopt;
    }
    guest.received_bytes += *received;
    // Does not wait for the rest of a different beginning.
    if (std::memcmp(guest.hello.data(), Hello::kMagic.data(),
                    std::min(guest.received_bytes, Hello::kMagic.size())) != 0) {
      ++counts.refused;
      guests_.erase(found);
      return std::nullopt;
    }
    if (*received == 0) return std::nullopt;
  }
  Arrival arrival{.socket = std::move(guest.socket), .hello = {}};
  std::memcpy(&arrival.hello, guest.hello.data(), sizeof(Hello));
  guests_.erase(found);
  return arrival;
}

void Doorway::SeeOff(UniqueFd socket) {
  const Ticket ticket = ++last_ticket_;
  if (shutdown(socket.get(), SHUT_WR) != 0 || !net::Discard(socket.get()).ok() ||
      !loop_.Rewatch(socket.get(), ticket).ok()) {
    return;
  }
  guests_[ticket] = {
      .socket = std::move(socket), .deadline = Deadline(), .is_leaving = true, .hello = {}};
}

void Doorway::Expire(Clock::time_point now) {
  while (!guests_.empty() && guests_.begin()->second.deadline <= now) {
    if (!guests_.begin()->second.is_leaving) ++counts.silent;
    guests_.erase(guests_.begin());
  }
  if (!guests_.empty()) loop_.TellAt(guests_.begin()->second.deadline);
}

Clock::time_point Doorway::Deadline() {
  const Clock::time_point deadline = Clock::now() + absl::ToChronoNanoseconds(patience_);
  loop_.TellAt(deadline);
  return deadline;
}

}  // namespace waybill::tcp
