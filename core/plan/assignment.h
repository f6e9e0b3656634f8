// SPDX-License-Identifier: Apache-2.0

// Decides which sender sends what: distributes demands over the holders of their sources.
#ifndef WAYBILL_CORE_PLAN_ASSIGNMENT_H_
#define WAYBILL_CORE_PLAN_ASSIGNMENT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/balance.h"
#include "core/plan/demands.h"
#include "core/plan/source_index.h"

namespace waybill {

// Whether receivers pass on what they receive.
enum class Relays : uint8_t { kWherePredictedFaster, kNever, kAlways };

// A subset of a demand's copies: of a range of the class's tensors, to a range of the want's
// destinations. Both ranges are half-open and index their lists.
struct Copies {
  uint32_t first_member = 0;
  uint32_t last_member = 1;
  uint32_t first_destination = 0;
  uint32_t last_destination = 1;

  uint64_t count() const {
    return uint64_t{last_member - first_member} * (last_destination - first_destination);
  }
};

// A part of a demand, with the holder that sends it.
struct Shipment {
  uint32_t demand = 0;
  // A receiver that relays is numbered after the senders, and `holding` is the index of its shard
  // in TensorClasses::wanted().
  Holder holder;
  Box box;  // Within the demand's box.
  Copies copies;
  // The holder sends only the digest of the bytes, which the receiver compares with the bytes that
  // another holder sends.
  bool witness = false;
};

// The rate of a rank's links, its host and its rack. Has the default values on all ranks if nothing
// is declared.
struct RankLink {
  double bytes_per_second = 1;
  uint32_t host = 0;  // Ranks with equal numbers are on one machine; 0 is unknown.
  uint32_t rack = 0;  // Ranks with equal numbers are in one rack; 0 is unknown.
};

struct Assignment {
  std::vector<Shipment> shipments;  // Sorted by demand.
  Balance balance;
  bool relays = false;  // True if receivers relay some shipments.
};

// Assigns demands so that the load of the busiest sender is minimal. Step 1 balances each set of
// replicas until no load moves between senders. This is the optimum, since the sum of squares is
// convex and separable over the sets. It gives each sender a quota. Step 2 assigns the copies of
// each demand to senders with quota left, preferring the receiver's own host, then its rack. A copy
// is cut where a quota ends, but not into pieces below `smallest_piece_bytes`.
//
// All parts of a block that is split between sources come from one set of replicas: the holders
// with the same index in each source's list. Each tensor uses one such set, the one with the most
// quota left.
//
// With relays, the senders send data that several receivers want only once to each neighbourhood,
// which is at most 512 receivers with consecutive numbers. They distribute the data over these
// receivers, and each receiver sends its part to the others. kWherePredictedFaster chooses the
// assignment whose busiest link is less loaded.
Assignment AssignDemands(const SourceIndex& sources, const Demands& demands,
                         absl::Span<const RankLink> senders, absl::Span<const RankLink> receivers,
                         uint64_t smallest_piece_bytes, Relays relays);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_ASSIGNMENT_H_
