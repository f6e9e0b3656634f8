// SPDX-License-Identifier: Apache-2.0

// The routes of one rank in bundles, the form in which the controller sends them.
//
// A bundle is all routes that bring the same box of several similar tensors from one sender to
// several receivers. A bundle is encoded in a few bytes, about as many as each of its routes would
// take. A rank has a few thousand bundles, but a few hundred thousand routes. So the controller
// makes and sends bundles, and each rank expands them to its own routes.
#ifndef WAYBILL_CORE_PLAN_BUNDLED_ROUTES_H_
#define WAYBILL_CORE_PLAN_BUNDLED_ROUTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/route_table.h"

namespace waybill {

// Each bundle has a route for each of its tensors and each of its receivers. Receivers that store
// the tensors at the same addresses form one recipient.
struct BundledRoutes {
  // The ranks by which the routes are grouped: receivers in a sender's table, senders in a
  // receiver's.
  enum class Peers : uint8_t { kReceivers, kSenders };

  // The order of the groups is cyclic and begins at `first_peer`. Within a group, routes are sorted
  // by destination, then by bundle and tensor.
  Peers peers = Peers::kSenders;
  uint32_t peer_count = 0;
  uint32_t first_peer = 0;

  // By bundle: the route of the first tensor to the first receiver.
  RouteTable first;
  std::vector<uint32_t> tensor_counts, recipient_counts;
  // By bundle and tensor: where the tensor is read.
  std::vector<uint32_t> source_shards, source_regions, scale_tables;
  std::vector<uint64_t> source_offsets_bytes;
  // By bundle and recipient: the number of receivers; and the receivers of all recipients, one
  // after the other.
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

// The most routes of one rank that are accepted: about a hundred times as many as in the largest
// jobs.
inline constexpr uint64_t kMostRoutesOfRank = uint64_t{1} << 24;

// Decodes bundles and returns their routes.
//
// kInvalidArgument: the bytes are not such an encoding, are of another version, have more routes
// than kMostRoutesOfRank or than so many bytes can describe, or describe a route that
// DecodeRoutes() rejects.
absl::StatusOr<RouteTable> DecodeBundledRoutes(absl::string_view bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BUNDLED_ROUTES_H_
