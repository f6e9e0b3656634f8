// SPDX-License-Identifier: Apache-2.0

// For tests: a tcp fabric that is polled until what a test waits for has happened.
#ifndef WAYBILL_CORE_FABRIC_TCP_DRIVEN_FABRIC_H_
#define WAYBILL_CORE_FABRIC_TCP_DRIVEN_FABRIC_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"

namespace waybill::tcp {

class DrivenFabric {
 public:
  // On an address of this host that is larger than the one of peers that are played by hand.
  explicit DrivenFabric(TcpOptions options = {}) {
    options.host = "127.0.0.2";
    fabric_ = *MakeTcpFabric(options);
  }

  Fabric& operator*() { return *fabric_; }
  Fabric* operator->() { return fabric_.get(); }

  void Poll() {
    polled_.clear();
    fabric_->Poll(polled_);
    events.insert(events.end(), polled_.begin(), polled_.end());
  }

  uint64_t Count(FabricEvent::Kind kind, LaneId lane) const {
    return static_cast<uint64_t>(
        std::count_if(events.begin(), events.end(),
                      [&](const FabricEvent& e) { return e.kind == kind && e.lane == lane; }));
  }
  bool IsConnected(LaneId lane) const { return Count(FabricEvent::Kind::kConnected, lane) > 0; }
  bool HasFailed(LaneId lane) const { return Count(FabricEvent::Kind::kFailed, lane) > 0; }

  uint64_t Counted(absl::string_view name) const {
    for (const FabricCount& count : fabric_->Counts()) {
      if (count.name == name) return count.value;
    }
    return ~uint64_t{0};
  }

  std::vector<FabricEvent> events;

 private:
  std::unique_ptr<Fabric> fabric_;
  std::vector<FabricEvent> polled_;
};

// Polls all of them in turn. False where it has not happened within some seconds.
template <typename Done, typename... Fabrics>
bool Until(const Done& done, Fabrics&... fabrics) {
  const absl::Time deadline = SteadyNow() + absl::Seconds(30);
  while (!done()) {
    if (SteadyNow() > deadline) return false;
    (fabrics.Poll(), ...);
  }
  return true;
}

// A lane between two fabrics, and a region of `b` that `a` may write to.
struct DrivenLane {
  DrivenLane(DrivenFabric& a, DrivenFabric& b)
      : a(a), b(b), at_a(*a->OpenLane("b", "")), at_b(*b->OpenLane("a", "")) {
    (void)a->ConnectLane(at_a, *b->LaneAddress(at_b));
    (void)b->ConnectLane(at_b, *a->LaneAddress(at_a));
    (void)Until([&] { return a.IsConnected(at_a) && b.IsConnected(at_b); }, a, b);
  }

  RemoteRegionId Reach(const Region& region) {
    RemoteRegionId remote = RemoteRegionId::kNone;
    (void)b->Grant(at_b, region.id);
    (void)Until(
        [&] {
          const auto imported = a->Import(at_a, *b->Describe(region.id));
          if (imported.ok()) remote = *imported;
          return imported.ok();
        },
        a, b);
    return remote;
  }

  // Whether it still brings an immediate.
  bool Carries() {
    const uint64_t before = b.Count(FabricEvent::Kind::kImmediate, at_b);
    return a->Post(at_a, {}, 1, 1).ok() &&
           Until([&] { return b.Count(FabricEvent::Kind::kImmediate, at_b) > before; }, a, b);
  }

  DrivenFabric& a;
  DrivenFabric& b;
  LaneId at_a;
  LaneId at_b;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_DRIVEN_FABRIC_H_
