#include "core/fabric/verbs/staging_ring.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill::verbs {

absl::StatusOr<std::unique_ptr<StagingRing>> StagingRing::Create(Verbs* verbs, const Device& device,
                                                                 const StagingLimits& limits) {
  const uint64_t size_bytes = limits.ring_bytes();
  WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::Create(size_bytes, "staging ring"));
  ibv_mr* registration = verbs->RegMr(device.pd(), pages.data(), size_bytes,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (registration == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("register a staging ring (", size_bytes,
                                                     " bytes) with ", device.name(), ": ",
                                                     std::strerror(errno), " (errno ", errno, ")"));
  }
  return std::unique_ptr<StagingRing>(
      new StagingRing(verbs, limits, std::move(pages), registration));
}

StagingRing::~StagingRing() { verbs_.DeregMr(registration_); }

PeerRing StagingRing::incoming() const {
  return {.address = reinterpret_cast<uintptr_t>(pages_.data()),
          .slot_bytes = limits_.slot_bytes,
          .remote_key = registration_->rkey,
          .slots = limits_.slots};
}

}  // namespace waybill::verbs
