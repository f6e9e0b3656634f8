// SPDX-License-Identifier: Apache-2.0

// What a receiver can relay: the chunks of which all bytes have arrived, and the digests that came
// with them.
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

// Both tables are cut by CutIntoChunks(), and chunks are numbered as there. Not thread-safe.
class RelayedRoutes {
 public:
  // `arrivals` are the routes to this receiver, and `relayed` those from it.
  //
  // kInvalidArgument: a relayed route does not have the box and the place of one that arrives.
  static absl::StatusOr<RelayedRoutes> Create(const RouteTable& arrivals,
                                              uint64_t arrival_chunk_bytes,
                                              const RouteTable& relayed,
                                              uint64_t relayed_chunk_bytes);

  // Begins an update: nothing has arrived.
  void Begin();
  // Returns how many updates have begun.
  uint64_t updates() const { return updates_; }
  // Says that a chunk of the arrivals can be read. Call it once for each chunk of an update.
  void OnArrived(uint32_t chunk);
  // Says that the entries of routes [first, last) of the arrivals are in the ledger.
  void OnLedger(uint32_t first, uint32_t last, const LedgerEntry* ledger);

  // Returns the relayed chunks that can be read, in the order in which this came true.
  absl::Span<const uint32_t> chunks() const { return ready_; }
  // The digest of a relayed route is that of the route which brings it: whoever gets it verifies it
  // against what the sender had.
  struct RouteDigest {
    uint32_t route = 0;
    uint64_t digest = 0;
  };
  absl::Span<const RouteDigest> digests() const { return digests_; }

 private:
  // Lists of numbers, one behind the other.
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

  Lists chunks_by_arrival_;      // Relayed chunks, by the chunk of the arrivals.
  Lists routes_by_arrival_;      // Relayed routes, by the route of the arrivals.
  std::vector<uint32_t> needs_;  // How many chunks of the arrivals each relayed chunk needs.
  std::vector<uint32_t> left_;   // How many of them have not arrived.
  std::vector<uint32_t> ready_;
  std::vector<RouteDigest> digests_;
  uint64_t updates_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_RELAYED_ROUTES_H_
