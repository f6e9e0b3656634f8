// SPDX-License-Identifier: Apache-2.0

// The routes of one rank in bundles, as the rank is sent them.
//
// A plan's routes come in bundles: from one sender, the same box of several alike tensors, to
// several receivers. A bundle takes a few bytes where its routes would take a few each, and a rank
// has some thousands of bundles where it has some hundred thousand routes. So the controller makes
// and sends bundles, and each rank makes its own routes of them.
#ifndef WAYBILL_CORE_PLAN_BUNDLED_ROUTES_H_
#define WAYBILL_CORE_PLAN_BUNDLED_ROUTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/route_table.h"

namespace waybill {

// Each bundle has a route for each of its tensors and each of its receivers. Receivers that take
// the tensors at the same places of their memory are one recipient.
struct BundledRoutes {
  // The ranks by which the routes are grouped: receivers in a sender's table, senders in a
  // receiver's.
  enum class Peers : uint8_t { kReceivers, kSenders };

  // The groups follow one another in a circle that begins at `first_peer`. Within a group, routes
  // follow one another by where they are written, then by bundle and tensor.
  Peers peers = Peers::kSenders;
  uint32_t peer_count = 0;
  uint32_t first_peer = 0;

  // By bundle: the route of its first tensor to its first receiver.
  RouteTable first;
  std::vector<uint32_t> tensor_counts, recipient_counts;
  // By bundle and tensor: where the tensor is read.
  std::vector<uint32_t> source_shards, source_regions, scale_tables;
  std::vector<uint64_t> source_offsets_bytes;
  // By bundle and recipient: the number of its receivers; and the receivers, one after the other.
  std::vector<uint32_t> receiver_counts, receivers;
  // By bundle, recipient and tensor: where the tensor is written.
  std::vector<uint32_t> destination_shards, destination_regions;
  std::vector<uint64_t> destination_offsets_bytes;

  uint64_t route_count() const;
};

// Returns the routes in their order.
RouteTable Expand(const BundledRoutes& bundled);

// Canonical: equal bundles are equal bytes.
std::string EncodeBundledRoutes(const BundledRoutes& bundled);

// The most routes of one rank that are accepted: some hundred times those of the largest jobs.
inline constexpr uint64_t kMostRoutesOfRank = uint64_t{1} << 24;

// Returns the routes of bundles that were encoded.
//
// kInvalidArgument: the bytes are not such an encoding, are of another version, have more routes
// than kMostRoutesOfRank or than bundles of that many bytes describe, or describe a route that
// DecodeRoutes() refuses.
absl::StatusOr<RouteTable> DecodeBundledRoutes(absl::string_view bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BUNDLED_ROUTES_H_
