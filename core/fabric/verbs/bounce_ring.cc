// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/bounce_ring.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill::verbs {

absl::StatusOr<std::unique_ptr<BounceRing>> BounceRing::Create(Verbs* verbs, const Device& device,
                                                               const BounceLimits& limits) {
  const uint64_t size_bytes = limits.ring_bytes();
  WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::Create(size_bytes, "bounce ring"));
  ibv_mr* registration = verbs->RegMr(device.pd(), pages.data(), size_bytes,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (registration == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("register a bounce ring (", size_bytes,
                                                     " bytes) with ", device.name(), ": ",
                                                     std::strerror(errno), " (errno ", errno, ")"));
  }
  return std::unique_ptr<BounceRing>(new BounceRing(verbs, limits, std::move(pages), registration));
}

BounceRing::~BounceRing() { verbs_.DeregMr(registration_); }

PeerRing BounceRing::incoming() const {
  return {.address = reinterpret_cast<uintptr_t>(pages_.data()),
          .slot_bytes = limits_.slot_bytes,
          .remote_key = registration_->rkey,
          .slots = limits_.slots};
}

}  // namespace waybill::verbs
