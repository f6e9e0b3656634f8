// SPDX-License-Identifier: Apache-2.0

// Verifies a receiver's routes: compares the digests of the arrived bytes with the digests that the
// senders wrote into the ledger.
#ifndef WAYBILL_CORE_ENGINE_ARRIVED_ROUTES_H_
#define WAYBILL_CORE_ENGINE_ARRIVED_ROUTES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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

// Lives on the progress thread, except for functions that are marked otherwise.
class ArrivedRoutes {
 public:
  // `manifest` must outlive the object. `senders` maps a sender's number in the plan to its rank.
  ArrivedRoutes(const Manifest* manifest, RouteTable routes, uint64_t chunk_bytes,
                std::map<uint32_t, RankId> senders);

  // Makes the device compute the digests of the regions that lie in its memory, for which
  // `is_there` returns true. Call it once, before anything arrives. `threads` is the number of
  // threads that call Digest(). kInternal: the device is out of memory, or cannot be used.
  absl::Status DigestOn(std::shared_ptr<Device> device, uint32_t threads,
                        std::function<bool(uint32_t region)> is_there);
  // Gives back the device's memory. Call it when nothing arrives by this plan any more: its routes
  // and their names stay.
  void LeaveDevice() { device_ = nullptr; }

  const RouteTable& routes() const { return routes_; }
  const ChunkList& chunks() const { return chunks_; }

  // `base`: the version from which chunks are completed of which only the changes come; null if
  // there is none. It must stay as it is during the update.
  void Begin(const UpdateId& update, Digests digests, const RegionSpans* base);
  // Notes that what changed has come in place of a chunk, which is digested later.
  void NoteChanges(uint32_t chunk) { changes_[chunk] = 1; }
  bool has_changes(uint32_t chunk) const { return changes_[chunk] != 0; }

  // Returns the number of chunks to pass to one Digest() call. The call waits for the device once
  // for all of its chunks.
  uint32_t at_once() const { return device_ == nullptr ? 1 : kChunksPerPass; }
  // [any thread] Computes the digests of the chunks' bytes in `regions`, after completing the
  // chunks of which the changes have come.
  void Digest(absl::Span<const uint32_t> chunks, const RegionSpans& regions);

  // Checks routes [first, last) against the receiver's whole `ledger`. Call it once their chunks
  // are digested and their entries have arrived. kDataLoss: names the first wrong route, or says
  // what came in place of changes. kInternal: a device failed to compute digests.
  absl::Status Compare(uint32_t first, uint32_t last, const LedgerEntry* ledger) const;

  // Checks that each sender quantised with the scales that arrived, including the scales that
  // another sender wrote. Call it once everything has arrived. kDataLoss: a sender used other
  // scales.
  absl::Status CompareWitnesses(const RegionSpans& regions, const LedgerEntry* ledger);

  // Returns a digest of the digests of all routes, which is equal for two updates of the same plan
  // with equal bytes. Call it once everything is verified.
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
  void Complete(uint32_t chunk, const RegionSpans& regions);

  const Manifest* manifest_;
  const RouteTable routes_;
  const uint64_t chunk_bytes_;
  const std::map<uint32_t, RankId> senders_;
  const ChunkList chunks_;
  std::unique_ptr<DeviceStager> device_;  // Null if everything arrives in host memory.
  std::function<bool(uint32_t region)> is_there_;
  std::vector<uint32_t> witnesses_;          // Witness routes: another sender writes the bytes.
  std::vector<uint64_t> witness_digests_;    // The digests of the arrived bytes, in the same order.
  std::vector<std::atomic<uint64_t>> sums_;  // By route: the sum of the digests of its leaves.
  UpdateId update_;
  Digests digests_ = Digests::kOn;
  const RegionSpans* base_ = nullptr;
  // By chunk. Bytes, because threads read some while others are noted.
  std::vector<uint8_t> changes_;
  mutable std::mutex changes_mutex_;
  absl::Status changes_status_;  // The first chunk that could not be completed.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_ARRIVED_ROUTES_H_
