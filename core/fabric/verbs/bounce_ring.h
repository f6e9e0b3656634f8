// SPDX-License-Identifier: Apache-2.0

// Memory of a lane that the device can always reach, for what it cannot: writes to or from a region
// that could not be registered bounce here, piece by piece.
#ifndef WAYBILL_CORE_FABRIC_VERBS_BOUNCE_RING_H_
#define WAYBILL_CORE_FABRIC_VERBS_BOUNCE_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/fabric/shared_pages.h"
#include "core/fabric/verbs/bounce_limits.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// Lies before the data of a piece that comes: where it belongs.
struct BouncedHeader {
  uint64_t key = 0;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};
inline constexpr uint64_t kBouncedHeaderBytes = BounceLimits::kHeaderBytes;
static_assert(sizeof(BouncedHeader) <= kBouncedHeaderBytes);

// Tells a peer where its pieces may be written.
struct PeerRing {
  uint64_t address = 0;
  uint64_t slot_bytes = 0;
  uint32_t remote_key = 0;
  uint32_t slots = 0;

  uint64_t AddressOf(uint64_t piece) const {
    return address + piece % slots * (kBouncedHeaderBytes + slot_bytes);
  }
};

// Pieces are numbered from 0, each way; the n-th uses slot n modulo their count.
class BounceRing {
 public:
  // kResourceExhausted: not even that much can be registered.
  static absl::StatusOr<std::unique_ptr<BounceRing>> Create(Verbs* verbs, const Device& device,
                                                            const BounceLimits& limits);
  ~BounceRing();
  BounceRing(const BounceRing&) = delete;
  BounceRing& operator=(const BounceRing&) = delete;

  const BounceLimits& limits() const { return limits_; }
  // The half that the peer writes to. It may do so at any time: read the header once.
  PeerRing incoming() const;
  const std::byte* Incoming(uint64_t piece) const { return Slot(piece % limits_.slots); }
  // The half that the device reads.
  std::byte* Outgoing(uint64_t piece) { return Slot(limits_.slots + piece % limits_.slots); }
  uint32_t local_key() const { return registration_->lkey; }

 private:
  BounceRing(Verbs* verbs, const BounceLimits& limits, SharedPages pages, ibv_mr* registration)
      : verbs_(*verbs), limits_(limits), pages_(std::move(pages)), registration_(registration) {}

  std::byte* Slot(uint64_t index) const {
    return pages_.data() + index * (kBouncedHeaderBytes + limits_.slot_bytes);
  }

  Verbs& verbs_;
  const BounceLimits limits_;
  const SharedPages pages_;
  ibv_mr* const registration_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_BOUNCE_RING_H_
