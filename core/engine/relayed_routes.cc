// SPDX-License-Identifier: Apache-2.0

#include "core/engine/relayed_routes.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/plan/chunks.h"

namespace waybill {
namespace {

// Finds the arriving route that writes the bytes which a relayed route reads.
class Arrivals {
 public:
  explicit Arrivals(const RouteTable& routes) : routes_(routes) {
    for (uint32_t r = 0; r < routes.size(); ++r) {
      if (routes.witness(r)) continue;
      by_place_[{routes.destination_region(r), routes.destination_offset(r)}] = r;
    }
  }

  absl::StatusOr<uint32_t> Find(const RouteView& relayed, uint32_t index) const {
    const auto found = by_place_.find({relayed.source_region, relayed.source_offset_bytes});
    if (found == by_place_.end() || routes_.box(found->second) != relayed.box ||
        routes_.shape(found->second).size_bytes() != relayed.shape.size_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("route ", index, " of what is relayed: ", ToString(relayed.box), " at byte ",
                       relayed.source_offset_bytes, " of region ", relayed.source_region,
                       " does not arrive as one route"));
    }
    return found->second;
  }

 private:
  const RouteTable& routes_;
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint32_t> by_place_;
};

// The pieces of a list by route. A list has its pieces in the order of routes.
struct PiecesByRoute {
  PiecesByRoute(const ChunkList& list, uint32_t routes) : begin(routes + 1, 0) {
    for (const Piece& piece : list.pieces) ++begin[piece.route + 1];
    for (uint32_t r = 0; r < routes; ++r) begin[r + 1] += begin[r];
    for (uint32_t c = 0; c < list.chunks.size(); ++c) {
      chunk.insert(chunk.end(), list.chunks[c].piece_count, c);
    }
  }

  std::vector<uint32_t> begin;  // The first piece of each route, then the number of all pieces.
  std::vector<uint32_t> chunk;  // By piece.
};

}  // namespace

absl::StatusOr<RelayedRoutes> RelayedRoutes::Create(const RouteTable& arrivals,
                                                    uint64_t arrival_chunk_bytes,
                                                    const RouteTable& relayed,
                                                    uint64_t relayed_chunk_bytes) {
  const ChunkList in = CutIntoChunks(arrivals, arrival_chunk_bytes);
  const ChunkList out = CutIntoChunks(relayed, relayed_chunk_bytes);
  const Arrivals by_place(arrivals);
  const PiecesByRoute pieces(in, arrivals.size());
  using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;
  Pairs chunks, routes;  // Pairs of an arriving and a relayed number.
  for (uint32_t r = 0; r < relayed.size(); ++r) {
    const absl::StatusOr<uint32_t> route = by_place.Find(relayed[r], r);
    if (!route.ok()) return route.status();
    routes.emplace_back(*route, r);
  }
  const Pairs by_relayed = routes;
  for (uint32_t c = 0; c < out.chunks.size(); ++c) {
    for (const Piece& piece : out.pieces_of(out.chunks[c])) {
      const uint32_t route = by_relayed[piece.route].first;
      const auto last = in.pieces.begin() + pieces.begin[route + 1];
      auto p = std::partition_point(in.pieces.begin() + pieces.begin[route], last,
                                    [&](const Piece& q) { return q.end <= piece.begin; });
      for (; p != last && p->begin < piece.end; ++p) {
        chunks.emplace_back(pieces.chunk[static_cast<size_t>(p - in.pieces.begin())], c);
      }
    }
  }
  std::sort(routes.begin(), routes.end());
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  std::vector<uint32_t> needs(out.chunks.size(), 0);
  for (const auto& [from, to] : chunks) ++needs[to];
  RelayedRoutes made(Lists(chunks, in.chunks.size()), Lists(routes, arrivals.size()),
                     std::move(needs));
  made.ready_.reserve(out.chunks.size());
  made.digests_.reserve(relayed.size());
  return made;
}

RelayedRoutes::Lists::Lists(const std::vector<std::pair<uint32_t, uint32_t>>& sorted, size_t count)
    : ends(count, 0) {
  for (const auto& [list, number] : sorted) {
    numbers.push_back(number);
    ++ends[list];
  }
  uint32_t end = 0;
  for (uint32_t& length : ends) length = end += length;
}

void RelayedRoutes::Begin() {
  ++updates_;
  left_ = needs_;
  ready_.clear();
  digests_.clear();
}

void RelayedRoutes::OnArrived(uint32_t chunk) {
  for (const uint32_t relayed : chunks_by_arrival_[chunk]) {
    if (--left_[relayed] == 0) ready_.push_back(relayed);
  }
}

void RelayedRoutes::OnLedger(uint32_t first, uint32_t last, const LedgerEntry* ledger) {
  for (uint32_t r = first; r < last; ++r) {
    for (const uint32_t relayed : routes_by_arrival_[r]) {
      digests_.push_back({relayed, ledger[r].digest});
    }
  }
}

}  // namespace waybill
