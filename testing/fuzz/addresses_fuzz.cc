// SPDX-License-Identifier: Apache-2.0

// Addresses of lanes and descriptors of regions, as a rank gets them by way of the controller.
#include <memory>
#include <utility>

#include "core/fabric/choice/choice_fabric.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/loopback/loopback.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fake_verbs/fake_network.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

// One fabric of each kind, and on loopback and local a lane that is up, to import on.
struct Everything {
  fake_verbs::FakeNetwork wire;
  LoopbackNetwork loopback;
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::unique_ptr<Fabric> peer = loopback.Join("peer");
  std::vector<FabricEvent> events;
  LaneId up = LaneId::kNone;

  Everything() {
    wire.Host("a").AddDevice("mlx5_0");
    fabrics.push_back(loopback.Join("self"));
    fabrics.push_back(*MakeLocalFabric());
    fabrics.push_back(*MakeTcpFabric());
    fabrics.push_back(*MakeVerbsFabric({.library = &wire.Host("a")}));
    std::vector<ChoiceMember> members;
    members.push_back({.fabric = *MakeLocalFabric(), .within_host = true});
    members.push_back({.fabric = *MakeTcpFabric()});
    fabrics.push_back(*MakeChoiceFabric(std::move(members), ""));
    up = *fabrics[0]->OpenLane("peer", "");
    const LaneId other = *peer->OpenLane("self", "");
    (void)fabrics[0]->ConnectLane(up, *peer->LaneAddress(other));
    (void)peer->ConnectLane(other, *fabrics[0]->LaneAddress(up));
  }
};

Everything& All() {
  static auto* const all = new Everything;
  return *all;
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {"0123456789abcdef", "1:1:1", ""};
  for (const auto& fabric : All().fabrics) {
    const LaneId lane = *fabric->OpenLane("peer", "");
    seeds.push_back(*fabric->LaneAddress(lane));
    (void)fabric->CloseLane(lane);
    seeds.push_back(*fabric->Describe((*fabric->Allocate(4096, "memory")).id));
  }
  return seeds;
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace waybill;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::Everything& all = fuzz::All();
  (void)all.fabrics[0]->Import(all.up, text);
  for (const auto& fabric : all.fabrics) {
    const LaneId lane = *fabric->OpenLane("peer", "");
    (void)fabric->Import(lane, text);
    (void)fabric->ConnectLane(lane, text);
    (void)fabric->ConnectLane(lane, text);
    all.events.clear();
    fabric->Poll(all.events);
    (void)fabric->DescribeLane(lane);
    fuzz::Require(fabric->CloseLane(lane).ok(), "a lane can be closed whatever it was told");
  }
  return 0;
}
