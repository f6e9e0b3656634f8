// SPDX-License-Identifier: Apache-2.0

// Converts between the messages of the control stream and the types of the core.
#ifndef WAYBILL_CORE_PROTOCOL_MESSAGE_CODEC_H_
#define WAYBILL_CORE_PROTOCOL_MESSAGE_CODEC_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/protocol/messages.pb.h"
#include "core/protocol/update.h"

namespace waybill {

inline constexpr uint32_t kProtocolVersion = 22;

proto::Error EncodeError(const absl::Status& status);
absl::Status DecodeError(const proto::Error& error);

proto::Buffer EncodeBuffer(const BufferAddress& buffer);
BufferAddress DecodeBuffer(const proto::Buffer& buffer);

proto::Round EncodeRound(const UpdateId& update);
UpdateId DecodeUpdate(const proto::Start& start);
UpdateId DecodeUpdate(const proto::Prepare& prepare);
// Returns true if the message that carries `round` belongs to `update`.
inline bool IsOf(const proto::Round& round, const UpdateId& update) {
  return round.epoch() == update.epoch && round.sequence() == update.sequence;
}

void EncodeLanes(const PeerLanes& lanes, proto::PeerLanes* out);
std::vector<PeerLanes> DecodeLanes(const proto::Plan& plan);

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_MESSAGE_CODEC_H_
