#include "core/fabric/local/local_lane.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/base/status.h"
#include "core/fabric/local/unix_socket.h"

namespace waybill::local {

absl::StatusOr<MemorySpan> PeerRegion::Memory(const std::shared_ptr<Device>& receiver) {
  if (gpu_memory.names_something()) {
    if (receiver == nullptr) {
      return absl::FailedPreconditionError("memory of a GPU, and none is received on");
    }
    if (!opened) {
      WAYBILL_ASSIGN_OR_RETURN(OpenedMemory now,
                               OpenedMemory::Open(receiver, gpu_memory, size_bytes));
      opened.emplace(std::move(now));
    }
    return MemorySpan{MemoryKind::kDevice, opened->data(), size_bytes};
  }
  if (!has_pages) {
    return absl::UnimplementedError("the peer did not allocate this region, so it can't be mapped");
  }
  if (!mapping) {
    WAYBILL_ASSIGN_OR_RETURN(mapping, SharedPages::FromPeer(std::move(fd), size_bytes));
  }
  return MemorySpan{MemoryKind::kHost, mapping->data(), size_bytes};
}

void LocalLane::Disconnect() {
  if (own_permit) own_permit->TakeBack(socket.get());
  socket.Reset();
}

absl::Status LocalLane::TakeGrant(absl::Span<const std::byte> body, UniqueFd fd) {
  GrantBody grant;
  if (body.size() != sizeof(grant)) return absl::DataLossError("a grant of a wrong size");
  std::memcpy(&grant, body.data(), sizeof(grant));
  granted_by_peer_.try_emplace(grant.key, PeerRegion{.size_bytes = grant.size_bytes,
                                                     .fd = std::move(fd),
                                                     .has_pages = grant.has_pages != 0,
                                                     .gpu_memory = grant.gpu_memory,
                                                     .mapping = {},
                                                     .opened = {}});
  return absl::OkStatus();
}

absl::Status LocalLane::TakeRevocation(absl::Span<const std::byte> body) {
  GrantBody grant;
  if (body.size() != sizeof(grant)) return absl::DataLossError("a revocation of a wrong size");
  std::memcpy(&grant, body.data(), sizeof(grant));
  const auto region = granted_by_peer_.find(grant.key);
  if (region == granted_by_peer_.end()) return absl::OkStatus();
  if (!region->second.mapping) {
    granted_by_peer_.erase(region);
  } else {
    region->second.revoked = true;
  }
  return absl::OkStatus();
}

RefusalBody ToRefusal(const absl::Status& status) {
  RefusalBody refusal{.code = static_cast<uint32_t>(status.code())};
  const absl::string_view text = status.message();
  std::copy_n(text.begin(), std::min(text.size(), sizeof(refusal.text) - 1), refusal.text);
  return refusal;
}

absl::Status FromRefusal(RefusalBody refusal) {
  refusal.text[sizeof(refusal.text) - 1] = 0;
  return absl::Status(static_cast<absl::StatusCode>(refusal.code), refusal.text);
}

PeerRegion* LocalLane::FindGrantedByPeer(uint64_t key) {
  const auto region = granted_by_peer_.find(key);
  return region == granted_by_peer_.end() || region->second.revoked ? nullptr : &region->second;
}

void LocalLane::ForgetIfRevoked(uint64_t key) {
  const auto region = granted_by_peer_.find(key);
  if (region != granted_by_peer_.end() && region->second.revoked) granted_by_peer_.erase(region);
}

absl::Status LocalLane::SendFrame(const FrameHeader& header, absl::Span<const std::byte> body,
                                  int fd) {
  std::byte frame[kMostFrameBytes];
  std::memcpy(frame, &header, sizeof(header));
  if (!body.empty()) std::memcpy(frame + sizeof(header), body.data(), body.size());
  const absl::Span<const std::byte> message(frame, sizeof(header) + body.size());
  absl::Status sent = unsent_.empty() ? Send(socket.get(), message, fd)
                                      : absl::Status(absl::StatusCode::kUnavailable, "");
  if (!absl::IsUnavailable(sent)) return sent;
  const bool is_done = header.kind == FrameKind::kDone;
  unsent_.push_back({{message.begin(), message.end()}, UniqueFd(fd < 0 ? -1 : dup(fd)), is_done});
  if (is_done) ++unsent_dones_;
  return absl::OkStatus();
}

absl::Status LocalLane::TakeDone(uint64_t token) {
  if (tokens.empty() || tokens[0] != token) {
    return absl::DataLossError("a post is said to be done that is not the oldest one");
  }
  tokens.PopFront();
  return absl::OkStatus();
}

absl::Status LocalLane::TellDone(uint64_t token) {
  if (unsent_dones_ >= kMostOutstandingPosts) {
    return absl::ResourceExhaustedError("more posts than may be outstanding");
  }
  return SendFrame({.kind = FrameKind::kDone, .token = token}, {});
}

void LocalLane::TellRefused(const absl::Status& why) {
  (void)SendFrame({.kind = FrameKind::kRefused}, BytesOf(ToRefusal(why)));
}

absl::Status LocalLane::Flush() {
  while (!unsent_.empty()) {
    const Unsent& first = unsent_.front();
    absl::Status sent = Send(socket.get(), first.bytes, first.fd.get());
    if (absl::IsUnavailable(sent)) return absl::OkStatus();
    WAYBILL_RETURN_IF_ERROR(sent);
    if (first.is_done) --unsent_dones_;
    unsent_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace waybill::local
