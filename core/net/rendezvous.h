// SPDX-License-Identifier: Apache-2.0

// How the two ends of a lane find each other: each is told the other's address over the control
// channel, the one with the smaller address dials, and by secrets in the first frames they know
// each other. Whoever lacks them is turned away. An end whose connection is closed without a word,
// because too many others are at the door, dials again.
//
// Thread-safety: none; everything is called by one thread, which owns the epoll.
#ifndef WAYBILL_CORE_NET_RENDEZVOUS_H_
#define WAYBILL_CORE_NET_RENDEZVOUS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/net/tcp_socket.h"

namespace waybill::net {

class Rendezvous {
 public:
  // One end that met its peer, or cannot: kUnavailable (nobody is there, or they closed),
  // kDeadlineExceeded.
  struct Met {
    uint32_t end = 0;
    absl::StatusOr<UniqueFd> socket;  // Not in any epoll.
  };

  // Listens on a free port of `host`, which is also what peers are told. Its descriptors are in
  // `epoll`, which outlives it, with their own number as data.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Create(const std::string& host, int epoll,
                                                            absl::Duration timeout, absl::Time now,
                                                            size_t most_strangers = 1024);

  // A new end, by a number that was not used before, and its address: "host:port/secret".
  absl::StatusOr<std::string> Open(uint32_t end);
  // Begins to look for the peer. Once for each end; one Met follows.
  absl::Status Connect(uint32_t end, absl::string_view peer_address);
  void Close(uint32_t end);

  // Handles an event. Returns false if the descriptor is not one of the rendezvous's own, or not
  // any more.
  bool Handle(int fd);
  // Gives up what has taken too long. Call it now and then, after the events that have come were
  // handled. Deadlines are by the times that it is given.
  void Expire(absl::Time now);
  // Returns the ends that have met, or failed to, since the last call.
  std::vector<Met> TakeMet();

  uint64_t refused() const { return refused_; }  // Strangers without the secret.

 private:
  static constexpr size_t kSecretBytes = 32;
  struct Hello {
    std::array<char, 8> magic;
    std::array<char, kSecretBytes> wanted;
    std::array<char, kSecretBytes> own;
  };
  struct End {
    std::string secret;
    HostPort peer;
    std::string peer_secret;  // Empty before Connect().
    bool begins = false;
    absl::Time deadline = absl::InfiniteFuture();
    UniqueFd dialed;
    bool said_hello = false;
    absl::Time dials_again_at = absl::InfiniteFuture();
    UniqueFd arrived;  // The peer's, before Connect() was called here.
    std::string arrived_secret;
  };
  struct Stranger {
    UniqueFd socket;
    absl::Time deadline;
    size_t received = 0;
    Hello hello;
  };

  Rendezvous(int epoll, Listener listener, absl::Duration timeout, absl::Time now,
             size_t most_strangers)
      : epoll_(epoll),
        listener_(std::move(listener)),
        timeout_(timeout),
        most_strangers_(most_strangers),
        now_(now) {}

  absl::Status Watch(int fd, uint32_t events);
  void Unwatch(int fd);
  void AcceptAll();
  void Listen(int fd, Stranger& stranger);
  void Introduce(UniqueFd socket, const Hello& hello);
  void Dial(uint32_t number, End& end);
  void Dialed(uint32_t number, End& end);
  void Welcome(uint32_t number, End& end);
  void Settle(uint32_t number, End& end, absl::StatusOr<UniqueFd> socket);

  const int epoll_;
  const Listener listener_;
  const absl::Duration timeout_;
  const size_t most_strangers_;
  absl::Time now_;
  std::map<uint32_t, End> ends_;
  std::map<std::string, uint32_t> by_secret_;
  std::map<int, uint32_t> by_socket_;  // Dialed.
  std::map<int, Stranger> strangers_;
  std::vector<Met> met_;
  uint64_t refused_ = 0;
};

}  // namespace waybill::net

#endif  // WAYBILL_CORE_NET_RENDEZVOUS_H_
