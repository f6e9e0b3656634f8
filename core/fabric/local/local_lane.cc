#include "core/fabric/local/local_lane.h"

#include <unistd.h>

#include <cstring>

#include "core/base/status.h"
#include "core/fabric/local/unix_socket.h"

namespace waybill::local {

absl::StatusOr<MemorySpan> PeerRegion::Memory() {
  if (!has_pages) {
    return absl::UnimplementedError("the peer did not allocate this region, so it can't be mapped");
  }
  if (!mapping) {
    WAYBILL_ASSIGN_OR_RETURN(mapping, SharedPages::FromPeer(std::move(fd), size_bytes));
  }
  return MemorySpan{MemoryKind::kHost, mapping->data(), size_bytes};
}

absl::Status LocalLane::SendFrame(const FrameHeader& header, absl::Span<const std::byte> body,
                                  int fd) {
  std::byte frame[kMostFrameBytes];
  std::memcpy(frame, &header, sizeof(header));
  if (!body.empty()) std::memcpy(frame + sizeof(header), body.data(), body.size());
  const absl::Span<const std::byte> message(frame, sizeof(header) + body.size());
  absl::Status sent = unsent_.empty() ? Send(socket.get(), message, fd)
                                      : absl::UnavailableError("others wait before it");
  if (!absl::IsUnavailable(sent)) return sent;
  unsent_.push_back({{message.begin(), message.end()}, UniqueFd(fd < 0 ? -1 : dup(fd))});
  return absl::OkStatus();
}

absl::Status LocalLane::Flush() {
  while (!unsent_.empty()) {
    const Unsent& first = unsent_.front();
    absl::Status sent = Send(socket.get(), first.bytes, first.fd.get());
    if (absl::IsUnavailable(sent)) return absl::OkStatus();
    WAYBILL_RETURN_IF_ERROR(sent);
    unsent_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace waybill::local
