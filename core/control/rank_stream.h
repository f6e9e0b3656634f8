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
  // Begins to connect, for at most `connect_patience`. Messages that are sent meanwhile leave once
  // the stream is connected. Calls `on_messages` with batches of messages in order, then `on_end`
  // once with the reason; both on gRPC's threads, one at a time. Returns null, after `on_end`, if
  // no stream can be made.
  static std::unique_ptr<RankStream> Open(
      const std::string& controller, const std::string& token, absl::Duration connect_patience,
      std::function<void(std::vector<proto::ControllerMessage>)> on_messages,
      std::function<void(absl::Status)> on_end);

  // Ends the stream, and returns once no callback is running or will run. Messages that were sent
  // before arrive if the peer reads them within a second.
  virtual ~RankStream() = default;

  // Sends messages in order. Drops the message if the stream has ended.
  virtual void Send(proto::RankMessage message) = 0;

  // Ends this side of the stream once all sent messages have left. Returns at once.
  virtual void BeginClose() = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_STREAM_H_
