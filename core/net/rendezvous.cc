// SPDX-License-Identifier: Apache-2.0

#include "core/net/rendezvous.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"

namespace waybill::net {
namespace {

constexpr std::array<char, 8> kHelloMagic = {'W', 'A', 'Y', 'B', 'L', 'N', '0', '1'};
constexpr std::array<char, 8> kWelcomeMagic = {'W', 'A', 'Y', 'B', 'W', 'L', '0', '1'};
constexpr std::array<char, 8> kUnknownMagic = {'W', 'A', 'Y', 'B', 'N', 'O', '0', '1'};
constexpr absl::Duration kPatienceWithStrangers = absl::Seconds(5);
constexpr absl::Duration kUntilNextDial = absl::Milliseconds(100);

template <typename T>
absl::Span<const std::byte> BytesOf(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof(value)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Create(const std::string& host, int epoll,
                                                               absl::Duration timeout,
                                                               absl::Time now,
                                                               size_t most_strangers) {
  WAYBILL_ASSIGN_OR_RETURN(Listener listener, net::Listen({.host = host, .port = 0}));
  std::unique_ptr<Rendezvous> rendezvous(
      new Rendezvous(epoll, std::move(listener), timeout, now, most_strangers));
  WAYBILL_RETURN_IF_ERROR(rendezvous->Watch(rendezvous->listener_.socket.get(), EPOLLIN));
  return rendezvous;
}

absl::StatusOr<std::string> Rendezvous::Open(uint32_t number) {
  WAYBILL_ASSIGN_OR_RETURN(std::string secret, RandomSecret());
  by_secret_[secret] = number;
  ends_[number].secret = secret;
  return absl::StrCat(ToString(listener_.address), "/", secret);
}

absl::Status Rendezvous::Connect(uint32_t number, absl::string_view peer_address) {
  const auto found = ends_.find(number);
  if (found == ends_.end()) return absl::NotFoundError(absl::StrCat("no end ", number));
  End& end = found->second;
  if (!end.peer_secret.empty()) return absl::FailedPreconditionError("this end has a peer");
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(peer_address, absl::MaxSplits('/', 1));
  if (parts.second.size() != kSecretBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", peer_address.substr(0, 100), "\" is not HOST:PORT/SECRET"));
  }
  WAYBILL_ASSIGN_OR_RETURN(end.peer, ParseHostPort(parts.first));
  end.peer_secret = std::string(parts.second);
  end.deadline = now_ + timeout_;
  end.begins = absl::StrCat(ToString(listener_.address), "/", end.secret) < peer_address;
  if (end.arrived.valid()) {
    Welcome(number, end);
    return absl::OkStatus();
  }
  // The one that waits dials too: only to learn whether there is anybody to wait for.
  Dial(number, end);
  return absl::OkStatus();
}

void Rendezvous::Close(uint32_t number) {
  const auto found = ends_.find(number);
  if (found == ends_.end()) return;
  if (found->second.dialed.valid()) by_socket_.erase(found->second.dialed.get());
  by_secret_.erase(found->second.secret);
  ends_.erase(found);
  std::erase_if(met_, [number](const Met& met) { return met.end == number; });
}

bool Rendezvous::Handle(int fd) {
  if (fd == listener_.socket.get()) {
    AcceptAll();
  } else if (const auto stranger = strangers_.find(fd); stranger != strangers_.end()) {
    Listen(fd, stranger->second);
  } else if (const auto dialed = by_socket_.find(fd); dialed != by_socket_.end()) {
    Dialed(dialed->second, ends_.at(dialed->second));
  } else {
    return false;
  }
  return true;
}

void Rendezvous::Expire(absl::Time now) {
  now_ = now;
  std::erase_if(strangers_, [now](const auto& s) { return s.second.deadline < now; });
  for (auto& [number, end] : ends_) {
    if (end.dials_again_at <= now) {
      end.dials_again_at = absl::InfiniteFuture();
      Dial(number, end);
    }
    if (end.deadline > now) continue;
    Settle(number, end,
           absl::DeadlineExceededError(absl::StrCat("the peer at ", ToString(end.peer),
                                                    " did not answer within ",
                                                    absl::FormatDuration(timeout_))));
  }
}

std::vector<Rendezvous::Met> Rendezvous::TakeMet() { return std::exchange(met_, {}); }

absl::Status Rendezvous::Watch(int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
}

void Rendezvous::Unwatch(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

void Rendezvous::AcceptAll() {
  for (UniqueFd fd = Accept(listener_.socket.get()); fd.valid();
       fd = Accept(listener_.socket.get())) {
    const int number = fd.get();
    // Whoever means it says so at once: the one who has waited longest is the likeliest stranger.
    if (strangers_.size() >= most_strangers_) {
      ++refused_;
      strangers_.erase(std::min_element(
          strangers_.begin(), strangers_.end(),
          [](const auto& a, const auto& b) { return a.second.deadline < b.second.deadline; }));
    }
    if (!Watch(number, EPOLLIN).ok()) continue;
    Stranger& stranger = strangers_[number] = {
        .socket = std::move(fd), .deadline = now_ + kPatienceWithStrangers, .hello = {}};
    Listen(number, stranger);  // While this thread was busy, many may have come and said hello.
  }
}

// The first frame of somebody who dialed tells which end is wanted, and who wants it.
void Rendezvous::Listen(int fd, Stranger& stranger) {
  auto* bytes = reinterpret_cast<std::byte*>(&stranger.hello);
  const absl::StatusOr<size_t> size =
      Receive(fd, {bytes + stranger.received, sizeof(Hello) - stranger.received});
  if (size.ok()) stranger.received += *size;
  if (size.ok() && stranger.received < sizeof(Hello)) return;
  const Hello hello = stranger.hello;
  UniqueFd socket = std::move(stranger.socket);
  strangers_.erase(fd);
  Unwatch(fd);
  if (size.ok()) Introduce(std::move(socket), hello);
}

void Rendezvous::Introduce(UniqueFd socket, const Hello& hello) {
  const auto known = by_secret_.find(std::string(hello.wanted.data(), hello.wanted.size()));
  const bool wanted = hello.magic == kHelloMagic && known != by_secret_.end() &&
                      !ends_.at(known->second).arrived.valid();
  if (!wanted) {
    ++refused_;
    (void)Send(socket.get(), BytesOf(kUnknownMagic));
    return;
  }
  End& end = ends_.at(known->second);
  end.arrived = std::move(socket);
  end.arrived_secret = std::string(hello.own.data(), hello.own.size());
  if (!end.peer_secret.empty()) Welcome(known->second, end);
}

void Rendezvous::Welcome(uint32_t number, End& end) {
  if (end.arrived_secret != end.peer_secret) {
    ++refused_;
    return Settle(number, end, absl::PermissionDeniedError("another process answered"));
  }
  const absl::StatusOr<size_t> sent = Send(end.arrived.get(), BytesOf(kWelcomeMagic));
  if (!sent.ok() || *sent != kWelcomeMagic.size()) {
    return Settle(number, end, absl::UnavailableError("the peer closed its end"));
  }
  Settle(number, end, std::move(end.arrived));
}

void Rendezvous::Dial(uint32_t number, End& end) {
  absl::StatusOr<UniqueFd> socket = BeginConnect(end.peer, listener_.address.host);
  absl::Status status = socket.status();
  if (socket.ok()) {
    by_socket_[socket->get()] = number;
    end.dialed = *std::move(socket);
    status = Watch(end.dialed.get(), EPOLLOUT);
  }
  if (!status.ok()) Settle(number, end, std::move(status));
}

void Rendezvous::Dialed(uint32_t number, End& end) {
  const int fd = end.dialed.get();
  if (!end.said_hello) {
    if (absl::Status status = FinishConnect(fd, end.peer); !status.ok()) {
      return Settle(number, end, std::move(status));
    }
    if (!end.begins) {  // Somebody is there, and will dial.
      by_socket_.erase(fd);
      end.dialed.Reset();
      return;
    }
    Hello hello{.magic = kHelloMagic, .wanted = {}, .own = {}};
    std::copy(end.peer_secret.begin(), end.peer_secret.end(), hello.wanted.begin());
    std::copy(end.secret.begin(), end.secret.end(), hello.own.begin());
    const absl::StatusOr<size_t> sent = Send(fd, BytesOf(hello));
    if (!sent.ok() || *sent != sizeof(hello)) {
      return Settle(number, end, absl::UnavailableError("the peer closed its end"));
    }
    end.said_hello = true;
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
    return;
  }
  std::array<char, 8> answer;
  const absl::StatusOr<size_t> size =
      Receive(fd, {reinterpret_cast<std::byte*>(answer.data()), answer.size()});
  if (size.ok() && *size == 0) return;
  by_socket_.erase(fd);
  Unwatch(fd);
  if (!size.ok()) {  // Nobody has read the hello.
    end.dialed.Reset();
    end.said_hello = false;
    end.dials_again_at = now_ + kUntilNextDial;
    return;
  }
  // Eight bytes are never cut up on their way: they are one segment.
  if (*size != answer.size() || answer != kWelcomeMagic) {
    return Settle(number, end,
                  absl::UnavailableError(absl::StrCat("the peer at ", ToString(end.peer),
                                                      " knows nothing of this lane")));
  }
  Settle(number, end, std::move(end.dialed));
}

void Rendezvous::Settle(uint32_t number, End& end, absl::StatusOr<UniqueFd> socket) {
  if (end.dialed.valid()) by_socket_.erase(end.dialed.get());
  end.dialed.Reset();
  end.deadline = absl::InfiniteFuture();
  end.dials_again_at = absl::InfiniteFuture();
  by_secret_.erase(end.secret);  // It is used up.
  met_.push_back({number, std::move(socket)});
}

}  // namespace waybill::net
