// SPDX-License-Identifier: Apache-2.0

// Accepts the controller's connections and hands them to gRPC.
#ifndef WAYBILL_CORE_CONTROL_DOORKEEPER_H_
#define WAYBILL_CORE_CONTROL_DOORKEEPER_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"

namespace waybill {

// gRPC's own listener closes for good when accept() fails once, for example because the process is
// briefly out of file descriptors. The doorkeeper waits and tries again. It also keeps strangers
// from using up all descriptors: when there are too many connections that have not proved that they
// know the token, it closes the oldest.
class Doorkeeper {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  struct Limits {
    size_t strangers = 1024;
    absl::Duration patience = absl::Seconds(10);  // The time after which gRPC closes a stranger.
  };

  // Listens at a name or an address with a port; port 0 takes a free one. No connection is accepted
  // before Start().
  static absl::StatusOr<std::unique_ptr<Doorkeeper>> Listen(const std::string& address,
                                                            const Limits& limits);
  ~Doorkeeper();

  uint16_t port() const { return port_; }

  // Hands each connection to the acceptor of a started server, until Stop().
  void Start(std::unique_ptr<Acceptor> acceptor);

  // Stops accepting connections.
  void Stop();

  // [any thread] Call it when a call arrives from `peer`, gRPC's name of the connection: the
  // connection has proved the token.
  void OnProved(const std::string& peer);

 private:
  struct Stranger {
    std::string peer;
    UniqueFd copy;  // gRPC may close its own descriptor at any time.
    absl::Time deadline;
  };

  explicit Doorkeeper(const Limits& limits) : limits_(limits) {}
  void Run();
  // Adds an accepted connection to the strangers.
  void Note(int connection);
  // Returns the milliseconds until the next stranger expires; -1 if there is none.
  int ForgetExpired();

  const Limits limits_;

  UniqueFd listener_;
  UniqueFd end_;  // An eventfd, readable when the thread is to end.
  uint16_t port_ = 0;
  std::unique_ptr<Acceptor> acceptor_;
  std::mutex mutex_;
  std::list<Stranger> strangers_;  // Oldest first. Guarded by mutex_.
  std::thread thread_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_DOORKEEPER_H_
