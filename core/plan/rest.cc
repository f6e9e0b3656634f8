#include "core/plan/rest.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/plan/geometry.h"
#include "core/plan/plan_codec.h"
#include "core/plan/planner.h"

namespace waybill {
namespace {

// A worker's memory, of which only some boxes are wanted.
struct Wanted {
  Manifest manifest;
  std::vector<uint32_t> shards;  // The worker's own, by shard of the manifest.
};

Wanted MakeWanted(const Manifest& worker, const RouteTable& arrivals,
                  const std::set<RankPair>& lacking) {
  Wanted wanted;
  wanted.manifest.set_host(worker.host());
  wanted.manifest.nics() = worker.nics();
  for (uint32_t r = 0; r < worker.region_count(); ++r) {
    wanted.manifest.AddRegion(worker.region_name(r), worker.region_bytes(r));
  }
  for (uint32_t t = 0; t < worker.tensor_count(); ++t) {
    wanted.manifest.AddTensor(worker.tensor_name(t), worker.tensor_shape(t),
                              worker.tensor_dtype(t));
  }
  for (uint32_t i = 0; i < arrivals.size(); ++i) {
    const RouteView route = arrivals[i];
    if (!lacking.contains({route.trainer, route.worker})) continue;
    const ShardView shard = worker.shard(route.destination_shard);
    Place place = shard.place;
    place.offset_bytes = OffsetWithin(shard, route.box);
    wanted.manifest.AddShard(shard.tensor_index, shard.format, route.box, place);
    wanted.shards.push_back(route.destination_shard);
  }
  return wanted;
}

// Makes the routes name the workers' own shards.
RouteTable Renamed(const RouteTable& table, const std::vector<Wanted>& wanted) {
  RouteTable renamed;
  renamed.Reserve(table.size());
  for (uint32_t i = 0; i < table.size(); ++i) {
    RouteView route = table[i];
    route.destination_shard = wanted[route.worker].shards[route.destination_shard];
    renamed.Add(route);
  }
  return renamed;
}

}  // namespace

absl::StatusOr<Plan> PlanRest(const Plan& plan, const std::set<RankPair>& lacking,
                              absl::Span<const Manifest* const> trainers,
                              absl::Span<const Manifest* const> workers) {
  if (plan.quantises()) {
    return absl::UnimplementedError("a version that is quantised on the way is sent as a whole");
  }
  std::vector<Wanted> wanted;
  for (size_t w = 0; w < workers.size(); ++w) {
    wanted.push_back(MakeWanted(*workers[w], plan.workers[w], lacking));
  }
  std::vector<const Manifest*> manifests;
  manifests.reserve(wanted.size());
  for (const Wanted& worker : wanted) manifests.push_back(&worker.manifest);
  WAYBILL_ASSIGN_OR_RETURN(Plan rest, MakePlan(trainers, manifests));
  for (RouteTable& table : rest.trainers) table = Renamed(table, wanted);
  for (RouteTable& table : rest.workers) table = Renamed(table, wanted);
  rest.hash = HashPlan(rest);
  return rest;
}

}  // namespace waybill
