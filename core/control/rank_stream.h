// SPDX-License-Identifier: Apache-2.0

// A rank's end of its stream to the controller.
#ifndef WAYBILL_CORE_CONTROL_RANK_STREAM_H_
#define WAYBILL_CORE_CONTROL_RANK_STREAM_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

// Thread-safe.
class RankStream {
 public:
  // Begins to connect, for `connect_patience` at most; what is sent meanwhile goes out once it is
  // connected. `on_messages`, with some in order, and then once `on_end` with the reason, are
  // called on gRPC's threads, one at a time. Returns null, after `on_end`, if there can be no
  // stream.
  static std::unique_ptr<RankStream> Open(
      const std::string& controller, const std::string& token, absl::Duration connect_patience,
      std::function<void(std::vector<proto::ControllerMessage>)> on_messages,
      std::function<void(absl::Status)> on_end);

  // Ends the stream; returns when neither callback runs or will run any more. What was sent before
  // arrives if the peer takes it within a second.
  virtual ~RankStream() = default;

  // In order; dropped if the stream has ended.
  virtual void Send(proto::RankMessage message) = 0;

  // Lets what was sent leave, then ends this side. Returns at once.
  virtual void BeginClose() = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_STREAM_H_
