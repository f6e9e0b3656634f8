// SPDX-License-Identifier: Apache-2.0

// A receiver's routes, with the proof that their bytes are here: digests of the memory against
// those that the senders wrote into the ledger.
#ifndef WAYBILL_CORE_ENGINE_ARRIVED_ROUTES_H_
#define WAYBILL_CORE_ENGINE_ARRIVED_ROUTES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/rank_id.h"
#include "core/device/device.h"
#include "core/engine/shown_state.h"
#include "core/plan/chunks.h"
#include "core/plan/route_table.h"
#include "core/protocol/update.h"
#include "core/stage/device_stager.h"
#include "core/stage/stage_piece.h"
#include "core/tensor/manifest.h"

namespace waybill {

// On the progress thread, but for Digest().
class ArrivedRoutes {
 public:
  // `manifest` outlives this.
  // `senders`: who they are, by number.
  ArrivedRoutes(const Manifest* manifest, RouteTable routes, uint64_t chunk_bytes,
                std::map<uint32_t, RankId> senders);

  // Digests by the device what arrives in its memory: the regions of which `is_there` returns true.
  // Call it once, before anything arrives. `threads` of them call Digest(). kInternal: the device
  // has no room, or cannot be used.
  absl::Status DigestOn(std::shared_ptr<Device> device, uint32_t threads,
                        std::function<bool(uint32_t region)> is_there);

  const RouteTable& routes() const { return routes_; }
  const ChunkList& chunks() const { return chunks_; }

  void Begin(const UpdateId& update, Digests digests);

  // How many chunks a thread best digests at a time: a device is waited for once for all of them.
  uint32_t at_once() const { return device_ == nullptr ? 1 : kChunksPerPass; }
  // [any thread] Takes the digests of what the chunks' bytes are in `regions`.
  void Digest(absl::Span<const uint32_t> chunks, const RegionSpans& regions);

  // Checks routes [first, last) against the receiver's whole `ledger`. Call it when their chunks
  // are digested and their entries have arrived. kDataLoss: names the first wrong route. kInternal:
  // a device could not digest them.
  absl::Status Compare(uint32_t first, uint32_t last, const LedgerEntry* ledger) const;

  // Checks that each sender quantised by the scales that were written here, also by those that
  // another sender wrote. Call it when everything is here. kDataLoss: a sender used other scales.
  absl::Status CompareWitnesses(const RegionSpans& regions, const LedgerEntry* ledger);

  // Returns a digest of the digests of all routes, by which two updates of equal plans are
  // compared. Call it when everything is here and verified.
  uint64_t DigestOfAll(const LedgerEntry* ledger) const;

  // [any thread]
  std::string NameOf(uint32_t route) const;

 private:
  bool OnDevice(uint32_t route) const {
    return device_ != nullptr && is_there_(routes_.destination_region(route));
  }
  const std::byte* At(uint32_t route, const RegionSpans& regions) const {
    return regions[routes_.destination_region(route)].data() + routes_.destination_offset(route);
  }
  void DigestWitnesses(const RegionSpans& regions);

  const Manifest* manifest_;
  const RouteTable routes_;
  const uint64_t chunk_bytes_;
  const std::map<uint32_t, RankId> senders_;
  const ChunkList chunks_;
  std::unique_ptr<DeviceStager> device_;  // Null if everything arrives in host memory.
  std::function<bool(uint32_t region)> is_there_;
  std::vector<uint32_t> witnesses_;          // Routes whose digest is of what others write.
  std::vector<uint64_t> witness_digests_;    // The digests of what is here, in the same order.
  std::vector<std::atomic<uint64_t>> sums_;  // By route, of its leaves.
  UpdateId update_;
  Digests digests_ = Digests::kOn;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_ARRIVED_ROUTES_H_
