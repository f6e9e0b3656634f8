// SPDX-License-Identifier: Apache-2.0

// When chunks can be relayed, against the bytes that have arrived.

#include "core/engine/relayed_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/chunks.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest.h"

namespace waybill {
namespace {

constexpr Format kBf16{Dtype::kBf16};

// Two senders that hold halves of each tensor, and three receivers that want all of it.
class RelayedRoutesTest : public testing::Test {
 protected:
  RelayedRoutesTest() {
    const std::vector<std::pair<int64_t, int64_t>> shapes = {
        {300, 70}, {64, 64}, {5, 9}, {1, 4000}};
    for (int t = 0; t < 4; ++t) {
      const auto [rows, columns] = shapes[static_cast<size_t>(t)];
      const std::string name = "t" + std::to_string(t);
      for (int half = 0; half < 2; ++half) {
        Box box = Box::Whole({rows, columns});
        half == 0 ? box.Set(1, 0, columns / 2) : box.Set(1, columns / 2, columns);
        Add(senders_[half], name, {rows, columns}, box);
      }
      for (Manifest& receiver : receivers_)
        Add(receiver, name, {rows, columns}, Box::Whole({rows, columns}));
    }
    plan_ = MakePlan(Relays::kAlways);
  }

  Plan MakePlan(Relays relays) const {
    std::vector<const Manifest*> from, to;
    for (const Manifest& m : senders_) from.push_back(&m);
    for (const Manifest& m : receivers_) to.push_back(&m);
    return *waybill::MakePlan(from, to, {.smallest_piece_bytes = 64, .relays = relays});
  }

  static void Add(Manifest& manifest, const std::string& name, std::vector<int64_t> shape,
                  const Box& box) {
    const uint32_t tensor = manifest.AddTensor(name, shape, Dtype::kBf16);
    const uint32_t region =
        manifest.AddRegion(name, static_cast<uint64_t>(box.element_count()) * 2);
    manifest.AddShard(tensor, kBf16, box, {region, 0, {box.extent(1), 1}});
  }

  Manifest senders_[2];
  Manifest receivers_[3];
  Plan plan_;
};

// The bytes that a piece fills, or is read from: by region and offset.
std::set<std::pair<uint32_t, uint64_t>> BytesOf(const RouteView& route, const Piece& piece,
                                                bool source) {
  std::set<std::pair<uint32_t, uint64_t>> bytes;
  ForEachDirectRun(
      route.shape, piece.begin, piece.end, [&](uint64_t from, uint64_t to, uint64_t size) {
        for (uint64_t b = 0; b < size; ++b) {
          bytes.insert(source ? std::pair(route.source_region, route.source_offset_bytes + from + b)
                              : std::pair(route.destination_region,
                                          route.destination_offset_bytes + to + b));
        }
      });
  return bytes;
}

TEST_F(RelayedRoutesTest, AChunkIsReadyOnceAllOfItsBytesHaveArrivedAndNotBefore) {
  constexpr uint64_t kIn = 4096, kOut = 8192;
  for (uint32_t w = 0; w < 3; ++w) {
    const RouteTable arrivals = plan_.ReceiverRoutes(w);
    const RouteTable relayed = plan_.SenderRoutes(plan_.relay(w));
    ASSERT_FALSE(relayed.empty());
    auto chunks = RelayedRoutes::Create(arrivals, kIn, relayed, kOut);
    ASSERT_TRUE(chunks.ok()) << chunks.status();
    const ChunkList in = CutIntoChunks(arrivals, kIn), out = CutIntoChunks(relayed, kOut);
    std::vector<uint32_t> order(in.chunks.size());
    for (uint32_t c = 0; c < order.size(); ++c) order[c] = c;
    std::mt19937 random(w);
    for (int update = 0; update < 3; ++update) {
      std::shuffle(order.begin(), order.end(), random);
      chunks->Begin();
      std::set<std::pair<uint32_t, uint64_t>> here;
      std::set<uint32_t> ready;
      for (const uint32_t c : order) {
        chunks->OnArrived(c);
        for (const Piece& piece : in.pieces_of(in.chunks[c])) {
          here.merge(BytesOf(arrivals[piece.route], piece, /*source=*/false));
        }
        ready = {chunks->chunks().begin(), chunks->chunks().end()};
        ASSERT_EQ(ready.size(), chunks->chunks().size());
        for (uint32_t o = 0; o < out.chunks.size(); ++o) {
          bool all = true;
          for (const Piece& piece : out.pieces_of(out.chunks[o])) {
            const auto bytes = BytesOf(relayed[piece.route], piece, /*source=*/true);
            all = all && std::includes(here.begin(), here.end(), bytes.begin(), bytes.end());
          }
          ASSERT_EQ(ready.contains(o), all) << "chunk " << o;
        }
      }
      EXPECT_EQ(ready.size(), out.chunks.size());
    }
  }
}

TEST_F(RelayedRoutesTest, TheDigestOfARouteIsThatOfTheRouteWhichBringsIt) {
  const RouteTable arrivals = plan_.ReceiverRoutes(0);
  const RouteTable relayed = plan_.SenderRoutes(plan_.relay(0));
  auto routes = RelayedRoutes::Create(arrivals, 4096, relayed, 4096);
  ASSERT_TRUE(routes.ok()) << routes.status();
  routes->Begin();
  std::vector<LedgerEntry> ledger(arrivals.size());
  for (uint32_t r = 0; r < arrivals.size(); ++r) ledger[r].digest = 1000 + r;
  for (uint32_t r = 0; r < arrivals.size(); ++r) routes->OnLedger(r, r + 1, ledger.data());
  ASSERT_EQ(routes->digests().size(), relayed.size());
  for (const auto& [route, digest] : routes->digests()) {
    const RouteView from = relayed[route];
    const RouteView brought = arrivals[static_cast<uint32_t>(digest - 1000)];
    EXPECT_EQ(brought.box, from.box);
    EXPECT_EQ(brought.destination_region, from.source_region);
  }
}

TEST_F(RelayedRoutesTest, WhatDoesNotArriveAsOneRouteIsRefused) {
  const auto chunks = RelayedRoutes::Create(MakePlan(Relays::kNever).ReceiverRoutes(0), 4096,
                                            plan_.SenderRoutes(plan_.relay(0)), 4096);
  EXPECT_EQ(chunks.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace waybill
