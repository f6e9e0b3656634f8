// A rank's end of its stream to the controller.
#ifndef WAYBILL_CORE_CONTROL_RANK_STREAM_H_
#define WAYBILL_CORE_CONTROL_RANK_STREAM_H_

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/control/control.pb.h"

namespace waybill {

// Thread-safe.
class RankStream {
 public:
  // `on_message` and then, once, `on_end` are called on gRPC's threads, one at a time.
  //
  // kUnavailable: nobody is there until the deadline; kCancelled: `cancel` was requested before.
  static absl::StatusOr<std::unique_ptr<RankStream>> Open(
      const std::string& controller, absl::Time deadline, const std::stop_token& cancel,
      std::function<void(const proto::ControllerMessage&)> on_message,
      std::function<void(absl::Status)> on_end);

  // Ends the stream, and returns when neither callback runs or will run any more.
  virtual ~RankStream() = default;

  // In order; dropped where the stream has ended.
  virtual void Send(proto::RankMessage message) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_STREAM_H_
