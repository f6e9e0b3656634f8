// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/local/local_lane.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/local/unix_socket.h"

namespace waybill::local {

absl::StatusOr<MemorySpan> PeerRegion::Memory(const std::shared_ptr<Device>& receiver) {
  if (gpu_memory.names_something()) {
    if (receiver == nullptr) {
      return absl::FailedPreconditionError("memory of a GPU, and none is received on");
    }
    if (!opened) {
      WAYBILL_RETURN_IF_ERROR(parts_status);
      WAYBILL_ASSIGN_OR_RETURN(OpenedMemory now,
                               OpenedMemory::Open(receiver, gpu_memory, size_bytes, parts));
      opened.emplace(std::move(now));
      parts.clear();
    }
    return MemorySpan{MemoryKind::kDevice, opened->data(), size_bytes};
  }
  if (!has_pages) {
    return absl::UnimplementedError("the peer did not allocate this region, so it can't be mapped");
  }
  if (!mapping) {
    WAYBILL_ASSIGN_OR_RETURN(mapping, SharedPages::FromPeer(std::move(fd), size_bytes));
    if (receiver != nullptr) pinned = PinnedMemory(receiver, {mapping->data(), size_bytes});
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
  // Parts that no grant followed were given up: their process could not export all of them.
  if (grant.gpu_memory.part_count == 0) ForgetNextParts();
  if (grant.gpu_memory.part_count != next_parts_.size() && next_parts_status_.ok()) {
    return absl::DataLossError("a grant with parts missing, or too many");
  }
  granted_by_peer_.try_emplace(grant.key,
                               PeerRegion{.size_bytes = grant.size_bytes,
                                          .fd = std::move(fd),
                                          .has_pages = grant.has_pages != 0,
                                          .gpu_memory = grant.gpu_memory,
                                          .parts = std::exchange(next_parts_, {}),
                                          .parts_status = std::exchange(next_parts_status_, {}),
                                          .mapping = {},
                                          .pinned = {},
                                          .opened = {}});
  return absl::OkStatus();
}

absl::Status LocalLane::TakePart(absl::Span<const std::byte> body, const UniqueFd& file,
                                 const std::shared_ptr<Device>& receiver) {
  PartBody part;
  if (body.size() != sizeof(part)) return absl::DataLossError("a part of a wrong size");
  std::memcpy(&part, body.data(), sizeof(part));
  if (part.index == 0) ForgetNextParts();
  if (part.index >= kMostParts) return absl::DataLossError("a region of too many parts");
  if (!next_parts_status_.ok()) return absl::OkStatus();
  if (part.index != next_parts_.size()) return absl::DataLossError("a part is missing");
  if (receiver == nullptr) {
    next_parts_status_ = absl::FailedPreconditionError("memory of a GPU, and none is received on");
    return absl::OkStatus();
  }
  absl::StatusOr<PartHandle> imported = PartHandle::Import(receiver, file, part.size_bytes);
  if (imported.ok()) {
    next_parts_.push_back(*std::move(imported));
  } else {
    next_parts_.clear();
    next_parts_status_ = imported.status();
  }
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

void LocalLane::ForgetNextParts() {
  next_parts_.clear();
  next_parts_status_ = absl::OkStatus();
}

void LocalLane::ForgetGpuMemory() {
  ForgetNextParts();
  for (auto& [key, region] : granted_by_peer_) {
    region.parts.clear();
    region.opened.reset();
  }
}

absl::Status LocalLane::SendFrame(const FrameHeader& header, absl::Span<const std::byte> body,
                                  absl::Span<const int> fds) {
  std::byte frame[kMostFrameBytes];
  std::memcpy(frame, &header, sizeof(header));
  if (!body.empty()) std::memcpy(frame + sizeof(header), body.data(), body.size());
  const absl::Span<const std::byte> message(frame, sizeof(header) + body.size());
  absl::Status sent = unsent_.empty() ? Send(socket.get(), message, fds)
                                      : absl::Status(absl::StatusCode::kUnavailable, "");
  if (!absl::IsUnavailable(sent)) return sent;
  const bool is_done = header.kind == FrameKind::kDone;
  Unsent unsent{{message.begin(), message.end()}, {}, is_done};
  for (const int fd : fds) {
    unsent.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!unsent.fds.back().valid()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("keep a descriptor that is to be sent: ", std::strerror(errno)));
    }
  }
  unsent_.push_back(std::move(unsent));
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
    int fds[kMostDescriptors];
    size_t count = 0;
    for (const UniqueFd& fd : first.fds) fds[count++] = fd.get();
    absl::Status sent = Send(socket.get(), first.bytes, {fds, count});
    if (absl::IsUnavailable(sent)) return absl::OkStatus();
    WAYBILL_RETURN_IF_ERROR(sent);
    if (first.is_done) --unsent_dones_;
    unsent_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace waybill::local
