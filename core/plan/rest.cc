// SPDX-License-Identifier: Apache-2.0

#include "core/plan/rest.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/bundles.h"
#include "core/plan/geometry.h"
#include "core/plan/planner.h"

namespace waybill {
namespace {

// A worker's memory, of which only some boxes are wanted.
struct Wanted {
  Manifest manifest;
  std::vector<uint32_t> shards;  // The worker's own, by shard of the manifest.
};

void AddWanted(const Manifest& worker, const RouteView& route, Wanted& wanted) {
  const ShardView shard = worker.shard(route.destination_shard);
  Place place = shard.place;
  place.offset_bytes = OffsetWithin(shard, route.box);
  wanted.manifest.AddShard(shard.tensor_index, shard.format, route.box, place);
  wanted.shards.push_back(route.destination_shard);
}

}  // namespace

absl::StatusOr<Plan> PlanRest(const Plan& plan, const std::set<RankPair>& lacking,
                              absl::Span<const Manifest* const> trainers,
                              absl::Span<const Manifest* const> workers) {
  if (plan.quantises()) {
    return absl::UnimplementedError("a version that is quantised on the way is sent as a whole");
  }
  if (workers.size() != plan.worker_count()) {
    return absl::InvalidArgumentError(absl::StrCat("plan what is lacking: ", workers.size(),
                                                   " workers, the plan has ", plan.worker_count()));
  }
  std::vector<Wanted> wanted;
  wanted.reserve(workers.size());
  for (const Manifest* worker : workers) wanted.push_back({worker->WithoutShards(), {}});
  for (uint32_t t = 0; t < plan.trainer_count(); ++t) {
    if (lacking.lower_bound({t, 0}) == lacking.lower_bound({t + 1, 0})) continue;
    const RouteTable routes = plan.TrainerRoutes(t);
    for (uint32_t i = 0; i < routes.size(); ++i) {
      const uint32_t worker = routes.worker(i);
      if (lacking.contains({t, worker})) AddWanted(*workers[worker], routes[i], wanted[worker]);
    }
  }
  std::vector<const Manifest*> manifests;
  std::vector<std::vector<uint32_t>> shards;
  for (Wanted& worker : wanted) {
    manifests.push_back(&worker.manifest);
    shards.push_back(std::move(worker.shards));
  }
  WAYBILL_ASSIGN_OR_RETURN(const Plan rest, MakePlan(trainers, manifests));
  auto renamed = std::make_shared<Bundles>(rest.bundles());
  renamed->RenameShards(std::move(shards));
  return Plan(std::move(renamed), rest.exchanges(), rest.balance());
}

}  // namespace waybill
