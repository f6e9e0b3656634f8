// SPDX-License-Identifier: Apache-2.0

// JSON lines between two processes on two hosts, with deadlines.
#ifndef WAYBILL_TOOLS_WAYBILL_DOCTOR_LINE_CHANNEL_H_
#define WAYBILL_TOOLS_WAYBILL_DOCTOR_LINE_CHANNEL_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"

namespace waybill {

// Returns the text of a field of a message, or "" if the field is no text.
std::string TextOf(const nlohmann::json& message, const char* field);

class LineChannel {
 public:
  explicit LineChannel(UniqueFd socket);

  absl::Status Say(const nlohmann::json& message);
  // Returns the next message. kDeadlineExceeded; kAborted: the other end is gone, or sent an
  // "error", which is the message.
  absl::StatusOr<nlohmann::json> Hear(absl::Time deadline);
  // Returns the next message, or nullopt if none has come yet.
  absl::StatusOr<std::optional<nlohmann::json>> HearNow();
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::string received_;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DOCTOR_LINE_CHANNEL_H_
