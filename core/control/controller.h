// SPDX-License-Identifier: Apache-2.0

// The controller, as a gRPC server: a process of its own, or an object in somebody's.
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

struct ControllerOptions {
  CoordinatorOptions coordinator;
  // Address and port; port 0 takes a free one. Beyond loopback a token is required.
  std::string listen = "127.0.0.1:7070";
  // The job's secret: whoever connects has to know it, and finds out whether this controller does.
  std::string token;
  // The file in which decisions are recorded; empty: nowhere, and they are lost with this process.
  std::string state;
  // A connection without a proof of the token, or a stream that has not joined, is closed then.
  absl::Duration stranger_timeout = absl::Seconds(10);
  // Streams that have not joined, of which more are refused; and connections without a proof, of
  // which the oldest makes room. Fewer where the process may open few files.
  uint32_t most_strangers = 1024;
};

// Serves from construction to destruction, on gRPC's own threads. Thread-safe.
class Controller {
 public:
  // kUnavailable: the address cannot be had, or the file of decisions is another controller's;
  // kInvalidArgument: an address beyond loopback without a token, or a state that is not a file.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(const ControllerOptions& options);
  // Records in `store` instead of options.state.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(const ControllerOptions& options,
                                                           std::unique_ptr<DecisionStore> store);
  virtual ~Controller() = default;

  // "127.0.0.1:40123": where ranks connect to.
  virtual std::string address() const = 0;
  virtual proto::StatusReply status() const = 0;
  // Not OK once the store has failed in a way that leaves a decision unknown: no update is decided
  // any more, and a controller has to be started anew.
  virtual absl::Status halted() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CONTROLLER_H_
