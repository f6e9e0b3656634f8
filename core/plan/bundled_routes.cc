// SPDX-License-Identifier: Apache-2.0

#include "core/plan/bundled_routes.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/byte_codec.h"
#include "core/plan/route_codec.h"

namespace waybill {
namespace {

constexpr uint32_t kMagic = 0x54525957;  // "WYRT"
constexpr uint32_t kVersion = 5;

// A bundle of many tensors for many receivers is short. This is some ten times what is seen, and
// keeps a few bytes from becoming gigabytes.
constexpr uint64_t kMostRoutesOfByte = 1024;

struct Header {
  uint32_t magic;
  uint32_t version;
  uint32_t peers;
  uint32_t peer_count;
  uint32_t first_peer;
  uint32_t bundle_count;
  uint64_t first_bytes;  // The size of the encoded first routes, which follow.
};

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("routing table: ", what));
}

// Adds up counts. Returns nullopt if one of them is 0, or if there are more than can be read.
std::optional<size_t> Sum(const std::vector<uint32_t>& counts, size_t most) {
  uint64_t sum = 0;
  for (const uint32_t count : counts) {
    sum += count;
    if (count == 0 || sum > most) return std::nullopt;
  }
  return sum;
}

// Reads a column of `count` numbers, each of which takes a byte or more.
template <typename T>
bool Read(ByteReader& reader, std::optional<size_t> count, std::vector<T>& column) {
  if (!count || *count > reader.left()) return false;
  column.resize(*count);
  return ReadColumn(reader, column);
}

// Returns the number of places where tensors are written, or nullopt if they cannot all be here.
std::optional<size_t> CountDestinations(const BundledRoutes& b, size_t most) {
  uint64_t sum = 0;
  for (size_t i = 0; i < b.tensor_counts.size(); ++i) {
    sum += uint64_t{b.tensor_counts[i]} * b.recipient_counts[i];
    if (sum > most) return std::nullopt;
  }
  return sum;
}

absl::Status ReadBundles(ByteReader& reader, uint32_t bundle_count, BundledRoutes& b) {
  const auto sum = [&](const std::vector<uint32_t>& counts) { return Sum(counts, reader.left()); };
  bool complete =
      Read(reader, bundle_count, b.tensor_counts) && Read(reader, bundle_count, b.recipient_counts);
  for (auto* column : {&b.source_shards, &b.source_regions, &b.scale_tables}) {
    complete = complete && Read(reader, sum(b.tensor_counts), *column);
  }
  complete = complete && Read(reader, sum(b.tensor_counts), b.source_offsets_bytes) &&
             Read(reader, sum(b.recipient_counts), b.receiver_counts) &&
             Read(reader, sum(b.receiver_counts), b.receivers);
  const auto destinations = [&] { return CountDestinations(b, reader.left()); };
  complete = complete && Read(reader, destinations(), b.destination_shards) &&
             Read(reader, destinations(), b.destination_regions) &&
             Read(reader, destinations(), b.destination_offsets_bytes);
  if (!complete) return Malformed("it ends in the middle of a bundle");
  if (reader.left() != 0) return Malformed(absl::StrCat(reader.left(), " bytes too many"));
  return absl::OkStatus();
}

absl::Status CheckPeers(const BundledRoutes& b) {
  const auto known = [&](uint32_t peer) { return peer < b.peer_count; };
  bool all = b.first_peer < std::max(b.peer_count, 1u);
  if (b.peers == BundledRoutes::Peers::kReceivers) {
    all = all && std::all_of(b.receivers.begin(), b.receivers.end(), known);
  } else {
    for (uint32_t i = 0; i < b.first.size(); ++i) all = all && known(b.first.sender(i));
  }
  return all ? absl::OkStatus() : Malformed(absl::StrCat("a peer is not among ", b.peer_count));
}

}  // namespace

uint64_t BundledRoutes::route_count() const {
  uint64_t routes = 0;
  size_t recipient = 0;
  for (size_t i = 0; i < tensor_counts.size(); ++i) {
    for (const size_t end = recipient + recipient_counts[i]; recipient < end; ++recipient) {
      routes += uint64_t{tensor_counts[i]} * receiver_counts[recipient];
    }
  }
  return routes;
}

RouteTable Expand(const BundledRoutes& b) {
  // A route: its bundle, and places in the columns.
  struct Place {
    uint32_t region;
    uint64_t offset_bytes;
    uint32_t bundle;
    uint32_t source, destination, receiver;
  };
  std::vector<std::vector<Place>> by_peer(b.peer_count);
  uint32_t source = 0, recipient = 0, receiver = 0, destination = 0;
  for (uint32_t i = 0; i < b.first.size(); ++i) {
    const uint32_t tensors = b.tensor_counts[i];
    for (const uint32_t end = recipient + b.recipient_counts[i]; recipient < end; ++recipient) {
      for (const uint32_t last = receiver + b.receiver_counts[recipient]; receiver < last;
           ++receiver) {
        const bool by_receiver = b.peers == BundledRoutes::Peers::kReceivers;
        std::vector<Place>& places =
            by_peer[by_receiver ? b.receivers[receiver] : b.first.sender(i)];
        for (uint32_t t = 0; t < tensors; ++t) {
          const uint32_t at = destination + t;
          places.push_back({b.destination_regions[at], b.destination_offsets_bytes[at], i,
                            source + t, at, b.receivers[receiver]});
        }
      }
      destination += tensors;
    }
    source += tensors;
  }
  RouteTable routes;
  routes.Reserve(static_cast<uint32_t>(b.route_count()));
  for (uint32_t i = 0; i < b.peer_count; ++i) {
    std::vector<Place>& places = by_peer[(b.first_peer + i) % b.peer_count];
    // A receiver's memory is written in its order, so that neighbours become one write.
    std::sort(places.begin(), places.end(), [](const Place& x, const Place& y) {
      return std::tie(x.region, x.offset_bytes, x.bundle, x.source) <
             std::tie(y.region, y.offset_bytes, y.bundle, y.source);
    });
    for (const Place& place : places) {
      RouteView route = b.first[place.bundle];
      route.receiver = place.receiver;
      route.source_shard = b.source_shards[place.source];
      route.source_region = b.source_regions[place.source];
      route.source_offset_bytes = b.source_offsets_bytes[place.source];
      route.scale_table = b.scale_tables[place.source];
      route.destination_shard = b.destination_shards[place.destination];
      route.destination_region = place.region;
      route.destination_offset_bytes = place.offset_bytes;
      routes.Add(route);
    }
  }
  return routes;
}

std::string EncodeBundledRoutes(const BundledRoutes& b) {
  const std::string first = EncodeRoutes(b.first);
  std::string out;
  AppendBytes(out, Header{.magic = kMagic,
                          .version = kVersion,
                          .peers = static_cast<uint32_t>(b.peers),
                          .peer_count = b.peer_count,
                          .first_peer = b.first_peer,
                          .bundle_count = b.first.size(),
                          .first_bytes = first.size()});
  out += first;
  AppendColumn(out, b.tensor_counts);
  AppendColumn(out, b.recipient_counts);
  for (const auto* column : {&b.source_shards, &b.source_regions, &b.scale_tables}) {
    AppendColumn(out, *column);
  }
  AppendColumn(out, b.source_offsets_bytes);
  AppendColumn(out, b.receiver_counts);
  AppendColumn(out, b.receivers);
  AppendColumn(out, b.destination_shards);
  AppendColumn(out, b.destination_regions);
  AppendColumn(out, b.destination_offsets_bytes);
  return out;
}

absl::StatusOr<RouteTable> DecodeBundledRoutes(absl::string_view bytes) {
  ByteReader reader(bytes);
  Header header;
  if (!reader.Read(header) || header.magic != kMagic) {
    return Malformed(absl::StrCat(bytes.size(), " bytes are not its encoding"));
  }
  if (header.version != kVersion) {
    return Malformed(absl::StrCat("version ", header.version, ", this program knows ", kVersion));
  }
  if (header.peers > static_cast<uint32_t>(BundledRoutes::Peers::kSenders) ||
      header.peer_count > kMostRoutesOfRank || header.first_bytes > reader.left()) {
    return Malformed("its header is out of range");
  }
  BundledRoutes b = {.peers = static_cast<BundledRoutes::Peers>(header.peers),
                     .peer_count = header.peer_count,
                     .first_peer = header.first_peer};
  WAYBILL_ASSIGN_OR_RETURN(b.first, DecodeRoutes(reader.rest().substr(0, header.first_bytes)));
  if (b.first.size() != header.bundle_count) {
    return Malformed(absl::StrCat(header.bundle_count, " bundles, and ", b.first.size(),
                                  " of them have a first route"));
  }
  ByteReader columns(reader.rest().substr(header.first_bytes));
  WAYBILL_RETURN_IF_ERROR(ReadBundles(columns, header.bundle_count, b));
  WAYBILL_RETURN_IF_ERROR(CheckPeers(b));
  const uint64_t count = b.route_count();
  if (count > std::min(kMostRoutesOfRank, kMostRoutesOfByte * bytes.size())) {
    return Malformed(absl::StrCat(count, " routes in ", bytes.size(), " bytes"));
  }
  RouteTable routes = Expand(b);
  WAYBILL_RETURN_IF_ERROR(CheckRoutes(routes));
  return routes;
}

}  // namespace waybill
