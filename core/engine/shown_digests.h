// SPDX-License-Identifier: Apache-2.0

// Keeps the senders' digests of a shown version, so that its bytes can be verified at any time.
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

// The digests of all routes of a version, 8 bytes each. Keeps the version's plans alive: there are
// several if a later plan brought routes that a lost sender did not.
class ShownDigests {
 public:
  explicit ShownDigests(uint64_t version) : version_(version) {}

  uint64_t version() const { return version_; }

  // Adds the digests of routes [first, last) from `ledger`, which holds the entries of all routes.
  // The routes have been verified against it.
  void Add(std::shared_ptr<const ArrivedRoutes> plan, uint32_t first, uint32_t last,
           const LedgerEntry* ledger);
  // Records that routes arrived without digests.
  void AddUnknown() { complete_ = false; }

  // [any thread] Computes the digests of a snapshot of the version, on the calling thread. `device`
  // holds the regions for which `is_there` returns true; it may be null. `bytes` is set to the
  // number of compared bytes, also if they differ.
  //
  // kDataLoss: names the difference. kFailedPrecondition: the version arrived without digests.
  // kCancelled: `stop` was requested. kInternal: the device failed to compute digests.
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
