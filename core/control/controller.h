// SPDX-License-Identifier: Apache-2.0

// The controller as a gRPC server, which runs in a process of its own or within another program.
#ifndef WAYBILL_CORE_CONTROL_CONTROLLER_H_
#define WAYBILL_CORE_CONTROL_CONTROLLER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/control/decision_store.h"
#include "core/protocol/coordinator.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

// Sees the messages between a controller and its ranks. The controller calls it under its lock, so
// an observer must not wait, and must not call the controller.
class ControllerObserver {
 public:
  virtual ~ControllerObserver() = default;
  // A rank is here. Its other messages follow.
  virtual void OnJoined(ConnectionId connection, const proto::Join& join) = 0;
  // A rank's message, before the controller acts on it.
  virtual void OnReceived(ConnectionId connection, const proto::RankMessage& message,
                          absl::Time now) = 0;
  virtual void OnSent(ConnectionId connection, const proto::ControllerMessage& message,
                      absl::Time now) = 0;
  // The stream is closed. May be called more than once.
  virtual void OnClosed(ConnectionId connection, absl::Time now) = 0;
};

struct ControllerOptions {
  CoordinatorOptions coordinator;
  // Address and port; port 0 takes a free one. Beyond loopback a token is required.
  std::string listen = "127.0.0.1:7070";
  // The job's secret, or a controller's key (identity.h). Both ends of a connection prove to each
  // other that they know the secret, or that it has issued their keys.
  std::string token;
  // A file of keys that are served no more (revoked_keys.h). If empty, all are served.
  std::string revoked;
  // The file in which decisions are recorded. If empty, decisions are lost when the process ends.
  std::string state;
  // The time after which a connection without a proof of the token, or a stream that has not
  // joined, is closed.
  absl::Duration stranger_timeout = absl::Seconds(10);
  // The most streams that have not joined: further ones are refused. Also the most connections
  // without a proof of the token: a further one closes the oldest. Lowered if the process may open
  // few files.
  uint32_t most_strangers = 1024;
  // Outlives the controller. Null if nobody observes.
  ControllerObserver* observer = nullptr;
};

// Serves from construction to destruction, on gRPC's own threads. Thread-safe.
class Controller {
 public:
  // kUnavailable: the address cannot be bound, or another controller uses the state file;
  // kInvalidArgument: an address beyond loopback without a token, a state that is not a file, or a
  // file of revoked keys that cannot be read; kUnauthenticated, kPermissionDenied: the token is not
  // valid, or no controller's.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(const ControllerOptions& options);
  // Records decisions in `store` instead of the file options.state.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(const ControllerOptions& options,
                                                           std::unique_ptr<DecisionStore> store);
  virtual ~Controller() = default;

  // Returns the address to which ranks connect, as "127.0.0.1:40123".
  virtual std::string address() const = 0;
  virtual proto::StatusReply status(const proto::StatusRequest& request) const = 0;
  proto::StatusReply status() const { return status(proto::StatusRequest()); }
  // Returns an error once a failure of the store has left a decision unknown. No update is decided
  // any more, and the controller must be restarted.
  virtual absl::Status halted() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CONTROLLER_H_
