// Accepts the controller's connections and hands them to gRPC.
#ifndef WAYBILL_CORE_CONTROL_DOORKEEPER_H_
#define WAYBILL_CORE_CONTROL_DOORKEEPER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace waybill {

// gRPC's own listener closes for good when accept() fails once, for example because the process has
// no descriptor left for a moment. This one waits and tries again.
class Doorkeeper {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  // Listens at a name or an address with a port; port 0 takes a free one. Nobody is let in before
  // Start().
  static absl::StatusOr<std::unique_ptr<Doorkeeper>> Listen(const std::string& address);
  ~Doorkeeper();

  uint16_t port() const { return port_; }

  // Hands each connection to the acceptor of a server that has started, until it is destroyed.
  void Start(std::unique_ptr<Acceptor> acceptor);

 private:
  Doorkeeper() = default;
  void Run();

  UniqueFd listener_;
  UniqueFd end_;  // An eventfd, readable when the thread is to end.
  uint16_t port_ = 0;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_DOORKEEPER_H_
