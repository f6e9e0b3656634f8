// SPDX-License-Identifier: Apache-2.0

// What the bytes of a version are, as its senders said, to compare what is shown with at any time.
#ifndef WAYBILL_CORE_ENGINE_SHOWN_DIGESTS_H_
#define WAYBILL_CORE_ENGINE_SHOWN_DIGESTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "core/device/device.h"
#include "core/engine/arrived_routes.h"
#include "core/engine/shown_state.h"
#include "core/protocol/update.h"

namespace waybill {

// The digests of all routes of a version, 8 bytes each. They keep the plans alive by which the
// version has come: more than one if a rest of it came by another.
class ShownDigests {
 public:
  explicit ShownDigests(uint64_t version) : version_(version) {}

  uint64_t version() const { return version_; }

  // Takes the digests of routes [first, last) from the whole `ledger`, against which they were
  // verified.
  void Add(std::shared_ptr<const ArrivedRoutes> plan, uint32_t first, uint32_t last,
           const LedgerEntry* ledger);
  // The same for routes that came without digests.
  void AddUnknown() { complete_ = false; }

  // [any thread] Digests what a snapshot of the version holds, as fast as one thread can. `device`:
  // the one in whose memory are the regions of which `is_there` returns true, or null. `bytes`: how
  // many were compared, also if they differ.
  //
  // kDataLoss: names what differs. kFailedPrecondition: the version came without digests.
  // kCancelled: `stop` was requested. kInternal: the device could not digest it.
  absl::Status Compare(const Snapshot& snapshot, std::shared_ptr<Device> device,
                       const std::function<bool(uint32_t region)>& is_there,
                       const std::stop_token& stop, uint64_t* bytes) const;

 private:
  struct Piece {
    std::shared_ptr<const ArrivedRoutes> plan;
    uint32_t first = 0;
    std::vector<uint64_t> digests;
  };

  const uint64_t version_;
  bool complete_ = true;
  std::vector<Piece> pieces_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_SHOWN_DIGESTS_H_
