// SPDX-License-Identifier: Apache-2.0

// What a rank needs from the program around it: a stream to the controller, and a sink for notices.
#ifndef WAYBILL_CORE_CONTROL_RANK_ACTIONS_H_
#define WAYBILL_CORE_CONTROL_RANK_ACTIONS_H_

#include "core/protocol/messages.pb.h"
#include "core/protocol/rank_session.h"

namespace waybill {

// None of these functions may call the rank. Results of a call are reported later.
class RankActions {
 public:
  virtual ~RankActions() = default;
  // Opens a stream to the controller; OnStreamOpen() or OnStreamEnd() follows.
  virtual void OpenStream() = 0;
  // Ends the stream once all sent messages have left.
  virtual void CloseStream() = 0;
  virtual void Send(proto::RankMessage message) = 0;
  virtual void Tell(Notice notice) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_ACTIONS_H_
