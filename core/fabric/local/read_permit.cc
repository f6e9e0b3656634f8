// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/local/read_permit.h"

#include <poll.h>
#include <sched.h>

#include <utility>

#include "core/base/status.h"
#include "core/base/steady_now.h"

namespace waybill::local {
namespace {

constexpr uint64_t kSizeBytes = 4096;
constexpr uint32_t kReading = 1;
constexpr uint32_t kTakenBack = 2;

static_assert(std::atomic<uint32_t>::is_always_lock_free, "it lies between processes");

bool PeerIsGone(int socket) {
  pollfd watched{.fd = socket, .events = 0, .revents = 0};
  return poll(&watched, 1, 0) > 0 && (watched.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace

absl::StatusOr<ReadPermit> ReadPermit::Create() {
  WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::Create(kSizeBytes, "read permit"));
  return ReadPermit(std::move(pages));
}

absl::StatusOr<ReadPermit> ReadPermit::FromPeer(UniqueFd fd) {
  WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::FromPeer(std::move(fd), kSizeBytes));
  return ReadPermit(std::move(pages));
}

bool ReadPermit::BeginReading() {
  if ((word().fetch_or(kReading) & kTakenBack) == 0) return true;
  EndReading();
  return false;
}

bool ReadPermit::EndReading() { return (word().fetch_and(~kReading) & kTakenBack) == 0; }

bool ReadPermit::TakeBack(int socket, absl::Duration patience) {
  word().fetch_or(kTakenBack);
  const absl::Time deadline = SteadyNow() + patience;
  while ((word().load() & kReading) != 0 && !PeerIsGone(socket)) {
    if (SteadyNow() >= deadline) return false;
    sched_yield();
  }
  return true;
}

}  // namespace waybill::local
