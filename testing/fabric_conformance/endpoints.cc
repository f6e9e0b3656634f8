// SPDX-License-Identifier: Apache-2.0

#include "testing/fabric_conformance/endpoints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/base/steady_now.h"

namespace waybill::testing_fabric {

size_t Endpoint::Poll() {
  if (fabric_ == nullptr) return 0;
  polled_.clear();
  fabric_->Poll(polled_);
  events_.insert(events_.end(), polled_.begin(), polled_.end());
  return polled_.size();
}

size_t Endpoint::Count(FabricEvent::Kind kind, LaneId lane) const {
  return static_cast<size_t>(
      std::count_if(events_.begin(), events_.end(),
                    [&](const FabricEvent& e) { return e.kind == kind && e.lane == lane; }));
}

bool Endpoint::IsComplete(LaneId lane, uint64_t token) const {
  return std::any_of(events_.begin(), events_.end(), [&](const FabricEvent& e) {
    return e.kind == FabricEvent::Kind::kComplete && e.lane == lane && e.token == token;
  });
}

std::vector<uint32_t> Endpoint::Immediates(LaneId lane) const {
  std::vector<uint32_t> immediates;
  for (const FabricEvent& e : events_) {
    if (e.kind == FabricEvent::Kind::kImmediate && e.lane == lane) {
      immediates.push_back(e.immediate);
    }
  }
  return immediates;
}

Endpoint& Endpoints::Join(const std::string& name) {
  return *endpoints_.emplace_back(std::make_unique<Endpoint>(name, make_fabric_(name)));
}

bool Endpoints::PollAll() {
  size_t events = 0;
  for (const auto& endpoint : endpoints_) events += endpoint->Poll();
  return events > 0;
}

bool Endpoints::Until(const std::function<bool()>& done) {
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  while (!done()) {
    if (SteadyNow() > deadline) return false;
    PollAll();
  }
  return true;
}

void Endpoints::UntilQuiet() {
  constexpr int kQuietRounds = 50;
  for (int quiet = 0; quiet < kQuietRounds; ++quiet) {
    if (PollAll()) quiet = 0;
  }
  // Then, where the network takes its time, as long as it may take.
  absl::Time quiet_since = SteadyNow();
  while (SteadyNow() < quiet_since + settle_) {
    for (const auto& endpoint : endpoints_) {
      if (endpoint->alive()) endpoint->fabric().Wait(SteadyNow() + absl::Milliseconds(1));
    }
    if (PollAll()) quiet_since = SteadyNow();
  }
}

Lane Endpoints::Open(Endpoint& a, Endpoint& b) {
  return {&a, &b, *a.fabric().OpenLane(b.name(), ""), *b.fabric().OpenLane(a.name(), "")};
}

Lane Endpoints::Connect(Endpoint& a, Endpoint& b) {
  const Lane lane = Open(a, b);
  EXPECT_EQ(a.fabric().ConnectLane(lane.at_a, *b.fabric().LaneAddress(lane.at_b)).message(), "");
  EXPECT_EQ(b.fabric().ConnectLane(lane.at_b, *a.fabric().LaneAddress(lane.at_a)).message(), "");
  EXPECT_TRUE(Until([&] {
    return a.Count(FabricEvent::Kind::kConnected, lane.at_a) > 0 &&
           b.Count(FabricEvent::Kind::kConnected, lane.at_b) > 0;
  })) << "the lane does not connect";
  return lane;
}

Reached Endpoints::AllocateAtB(const Lane& lane, uint64_t size_bytes) {
  return GrantToA(lane, *lane.b->fabric().Allocate(size_bytes, "destination"));
}

Reached Endpoints::GrantToA(const Lane& lane, const Region& region) {
  Reached reached{.region = region, .descriptor = *lane.b->fabric().Describe(region.id)};
  EXPECT_EQ(lane.b->fabric().Grant(lane.at_b, region.id).message(), "");
  absl::Status last;
  EXPECT_TRUE(Until([&] {
    const auto remote = lane.a->fabric().Import(lane.at_a, reached.descriptor);
    last = remote.status();
    if (remote.ok()) reached.remote = *remote;
    return remote.ok();
  })) << last;
  return reached;
}

Region Endpoints::SourceAtA(const Lane& lane, uint64_t size_bytes, uint32_t seed) {
  const Region region = *lane.a->fabric().Allocate(size_bytes, "source");
  EXPECT_EQ(lane.a->fabric().Grant(lane.at_a, region.id).message(), "");
  Fill(region.memory, seed);
  return region;
}

bool Endpoints::PostAndComplete(const Lane& lane, const std::vector<Write>& writes,
                                std::optional<uint32_t> immediate) {
  const uint64_t token = NextToken();
  EXPECT_EQ(lane.a->fabric().Post(lane.at_a, writes, immediate, token).message(), "");
  return Until([&] { return lane.a->IsComplete(lane.at_a, token); });
}

absl::Status Endpoints::PostAndFail(const Lane& lane, const std::vector<Write>& writes) {
  const uint64_t token = NextToken();
  const absl::Status status = lane.a->fabric().Post(lane.at_a, writes, std::nullopt, token);
  if (!status.ok()) return status;
  EXPECT_TRUE(Until([&] { return lane.a->HasFailed(lane.at_a); })) << "the lane does not fail";
  EXPECT_FALSE(lane.a->IsComplete(lane.at_a, token));
  return lane.a->fabric().LaneStatus(lane.at_a);
}

void Fill(const MemorySpan& memory, uint32_t seed) {
  for (uint64_t i = 0; i < memory.size_bytes; ++i) memory.data[i] = ByteAt(i, seed);
}

bool AllAre(const MemorySpan& memory, std::byte value) {
  return std::all_of(memory.data, memory.data + memory.size_bytes,
                     [value](std::byte b) { return b == value; });
}

}  // namespace waybill::testing_fabric
