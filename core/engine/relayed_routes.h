// SPDX-License-Identifier: Apache-2.0

// Keeps track of what a receiver can relay: the chunks whose bytes have all arrived, and the
// digests that arrived with them.
#ifndef WAYBILL_CORE_ENGINE_RELAYED_ROUTES_H_
#define WAYBILL_CORE_ENGINE_RELAYED_ROUTES_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/route_table.h"
#include "core/protocol/update.h"

namespace waybill {

// CutIntoChunks() cuts both tables, and its chunk numbers are used here. Not thread-safe.
class RelayedRoutes {
 public:
  // `arrivals` are the routes to this receiver, and `relayed` those from it.
  //
  // kInvalidArgument: a relayed route does not have the box and the place of an arriving route.
  static absl::StatusOr<RelayedRoutes> Create(const RouteTable& arrivals,
                                              uint64_t arrival_chunk_bytes,
                                              const RouteTable& relayed,
                                              uint64_t relayed_chunk_bytes);

  // Begins an update: nothing has arrived.
  void Begin();
  // Returns how many updates have begun.
  uint64_t updates() const { return updates_; }
  // Records that a chunk of the arrivals can be read. Call it once for each chunk of an update.
  void OnArrived(uint32_t chunk);
  // Records that the entries of routes [first, last) of the arrivals are in the ledger.
  void OnLedger(uint32_t first, uint32_t last, const LedgerEntry* ledger);

  // Returns the relayed chunks that can be read, in the order in which they became readable.
  absl::Span<const uint32_t> chunks() const { return ready_; }
  // The digest of a relayed route, which is the digest of the arriving route: the next receiver
  // verifies the bytes against the first sender's.
  struct RouteDigest {
    uint32_t route = 0;
    uint64_t digest = 0;
  };
  absl::Span<const RouteDigest> digests() const { return digests_; }

 private:
  // Lists of numbers, stored one after the other.
  struct Lists {
    Lists(const std::vector<std::pair<uint32_t, uint32_t>>& sorted, size_t count);
    absl::Span<const uint32_t> operator[](uint32_t i) const {
      const uint32_t begin = i == 0 ? 0 : ends[i - 1];
      return absl::MakeConstSpan(numbers).subspan(begin, ends[i] - begin);
    }

    std::vector<uint32_t> numbers;
    std::vector<uint32_t> ends;
  };

  RelayedRoutes(Lists chunks_by_arrival, Lists routes_by_arrival, std::vector<uint32_t> needs)
      : chunks_by_arrival_(std::move(chunks_by_arrival)),
        routes_by_arrival_(std::move(routes_by_arrival)),
        needs_(std::move(needs)),
        left_(needs_) {}

  Lists chunks_by_arrival_;      // By chunk of the arrivals: the relayed chunks that need it.
  Lists routes_by_arrival_;      // By route of the arrivals: the relayed routes with its digest.
  std::vector<uint32_t> needs_;  // By relayed chunk: the number of arriving chunks that it needs.
  std::vector<uint32_t> left_;   // By relayed chunk: the number of these that have not arrived.
  std::vector<uint32_t> ready_;
  std::vector<RouteDigest> digests_;
  uint64_t updates_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_RELAYED_ROUTES_H_
