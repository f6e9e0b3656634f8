// SPDX-License-Identifier: Apache-2.0

// Decides which sender sends what: shares demands out between the holders of their sources.
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

// Some of the copies of a demand: those of some of the class's tensors to some of the want's
// destinations. Both are half-open ranges of places in their lists.
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
  // A receiver that relays has a number behind the senders, and `holding` is the place of its shard
  // in TensorClasses::wanted().
  Holder holder;
  Box box;  // Within the demand's box.
  Copies copies;
  // The holder sends nothing but the digest of what it would send, for the receiver to compare.
  bool witness = false;
};

// The rate of a rank's links, its host and its rack. Equal for all ranks if nothing is declared.
struct RankLink {
  double bytes_per_second = 1;
  uint32_t host = 0;  // Equal numbers are one machine; 0 is unknown.
  uint32_t rack = 0;  // Equal numbers are one rack; 0 is unknown.
};

struct Assignment {
  std::vector<Shipment> shipments;  // In the order of demands.
  Balance balance;
  bool relays = false;  // Some shipments are relayed by receivers.
};

// Minimises the load of the busiest sender. First each set of replicas is filled like connected
// vessels until nothing moves (the optimum, since the sum of squares is convex and the sets are its
// separable blocks); then the copies of each demand are dealt out to these quotas, on the
// receiver's own host or else in its own rack where there is a choice. A copy is cut where a quota
// ends, but not below `smallest_piece_bytes`.
//
// All parts of a block that is split between sources come from one set of replicas, the holders of
// the same place in their order; a tensor has one such set, of those with the most left to send.
//
// With relays, the senders send what several receivers want alike once to each neighbourhood, of at
// most 512 receivers with consecutive numbers: they deal it out among these receivers, and each of
// them sends its part to the others. kWherePredictedFaster compares the busiest link of both ways.
Assignment AssignDemands(const SourceIndex& sources, const Demands& demands,
                         absl::Span<const RankLink> senders, absl::Span<const RankLink> receivers,
                         uint64_t smallest_piece_bytes, Relays relays);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_ASSIGNMENT_H_
