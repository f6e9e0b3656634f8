// A controller's status, over the network.
#ifndef WAYBILL_CORE_CONTROL_FETCH_STATUS_H_
#define WAYBILL_CORE_CONTROL_FETCH_STATUS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

// kUnavailable: nobody answers there until `timeout` is over.
absl::StatusOr<proto::StatusReply> FetchStatus(const std::string& address, const std::string& token,
                                               absl::Duration timeout);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_FETCH_STATUS_H_
