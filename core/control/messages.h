// Between the messages of the control channel and the words of the engines.
#ifndef WAYBILL_CORE_CONTROL_MESSAGES_H_
#define WAYBILL_CORE_CONTROL_MESSAGES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/control/control.pb.h"
#include "core/engine/update.h"

namespace waybill {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kMostPartBytes = 1 << 20;

proto::Error EncodeError(const absl::Status& status);
absl::Status DecodeError(const proto::Error& error);

proto::Buffer EncodeBuffer(const BufferAddress& buffer);
BufferAddress DecodeBuffer(const proto::Buffer& buffer);

proto::Counts EncodeCounts(const TransferCounts& counts);
TransferCounts DecodeCounts(const proto::Counts& counts);

void EncodeLanes(const PeerLanes& lanes, proto::PeerLanes* out);
std::vector<PeerLanes> DecodeLanes(const proto::Plan& plan);

// Calls send(part) for each part of `bytes`, at least once.
template <typename Send>
void SendInParts(absl::string_view bytes, Send send) {
  do {
    const absl::string_view now = bytes.substr(0, kMostPartBytes);
    bytes.remove_prefix(now.size());
    proto::Part part;
    part.set_data(now.data(), now.size());
    part.set_last(bytes.empty());
    send(std::move(part));
  } while (!bytes.empty());
}

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_MESSAGES_H_
