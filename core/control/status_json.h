// A controller's status, for programs.
#ifndef WAYBILL_CORE_CONTROL_STATUS_JSON_H_
#define WAYBILL_CORE_CONTROL_STATUS_JSON_H_

#include <string>

#include "core/protocol/messages.pb.h"

namespace waybill {

std::string StatusToJson(const proto::StatusReply& status);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_STATUS_JSON_H_
