// Memory of a lane that the device can always reach, for what it cannot: the pieces of writes wait
// here that go to, or come from, a region which could not be registered.
#ifndef WAYBILL_CORE_FABRIC_VERBS_STAGING_RING_H_
#define WAYBILL_CORE_FABRIC_VERBS_STAGING_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/fabric/shared_pages.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/staging_limits.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// Lies before the data of a piece that comes: where it belongs.
struct StagedHeader {
  uint64_t key = 0;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};
inline constexpr uint64_t kStagedHeaderBytes = StagingLimits::kHeaderBytes;
static_assert(sizeof(StagedHeader) <= kStagedHeaderBytes);

// Tells a peer where its pieces may be written.
struct PeerRing {
  uint64_t address = 0;
  uint64_t slot_bytes = 0;
  uint32_t remote_key = 0;
  uint32_t slots = 0;

  uint64_t AddressOf(uint64_t piece) const {
    return address + piece % slots * (kStagedHeaderBytes + slot_bytes);
  }
};

// Pieces are numbered from 0, each way; the n-th uses slot n modulo their count.
class StagingRing {
 public:
  // kResourceExhausted: not even that much can be registered.
  static absl::StatusOr<std::unique_ptr<StagingRing>> Create(Verbs* verbs, const Device& device,
                                                             const StagingLimits& limits);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  const StagingLimits& limits() const { return limits_; }
  // The half that the peer writes to. It may do so at any time: read the header once.
  PeerRing incoming() const;
  const std::byte* Incoming(uint64_t piece) const { return Slot(piece % limits_.slots); }
  // The half that the device reads.
  std::byte* Outgoing(uint64_t piece) { return Slot(limits_.slots + piece % limits_.slots); }
  uint32_t local_key() const { return registration_->lkey; }

 private:
  StagingRing(Verbs* verbs, const StagingLimits& limits, SharedPages pages, ibv_mr* registration)
      : verbs_(*verbs), limits_(limits), pages_(std::move(pages)), registration_(registration) {}

  std::byte* Slot(uint64_t index) const {
    return pages_.data() + index * (kStagedHeaderBytes + limits_.slot_bytes);
  }

  Verbs& verbs_;
  const StagingLimits limits_;
  const SharedPages pages_;
  ibv_mr* const registration_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_STAGING_RING_H_
