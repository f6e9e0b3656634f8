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

// A receiver's memory, of which only some boxes are wanted.
struct Wanted {
  Manifest manifest;
  std::vector<uint32_t> shards;  // The receiver's own, by shard of the manifest.
};

void AddWanted(const Manifest& receiver, const RouteView& route, Wanted& wanted) {
  const ShardView shard = receiver.shard(route.destination_shard);
  Place place = shard.place;
  place.offset_bytes = OffsetWithin(shard, route.box);
  wanted.manifest.AddShard(shard.tensor_index, shard.format, route.box, place);
  wanted.shards.push_back(route.destination_shard);
}

}  // namespace

absl::StatusOr<Plan> PlanRest(const Plan& plan, const std::set<RankPair>& lacking,
                              absl::Span<const Manifest* const> senders,
                              absl::Span<const Manifest* const> receivers) {
  if (plan.quantises()) {
    return absl::UnimplementedError("a version that is quantised on the way is sent as a whole");
  }
  if (receivers.size() != plan.receiver_count()) {
    return absl::InvalidArgumentError(absl::StrCat("plan what is lacking: ", receivers.size(),
                                                   " workers, the plan has ",
                                                   plan.receiver_count()));
  }
  std::vector<Wanted> wanted;
  wanted.reserve(receivers.size());
  for (const Manifest* receiver : receivers) wanted.push_back({receiver->WithoutShards(), {}});
  for (uint32_t t = 0; t < plan.sender_count(); ++t) {
    if (lacking.lower_bound({t, 0}) == lacking.lower_bound({t + 1, 0})) continue;
    const RouteTable routes = plan.SenderRoutes(t);
    for (uint32_t i = 0; i < routes.size(); ++i) {
      const uint32_t receiver = routes.receiver(i);
      if (lacking.contains({t, receiver}))
        AddWanted(*receivers[receiver], routes[i], wanted[receiver]);
    }
  }
  std::vector<const Manifest*> manifests;
  std::vector<std::vector<uint32_t>> shards;
  for (Wanted& receiver : wanted) {
    manifests.push_back(&receiver.manifest);
    shards.push_back(std::move(receiver.shards));
  }
  WAYBILL_ASSIGN_OR_RETURN(const Plan rest, MakePlan(senders, manifests));
  auto renamed = std::make_shared<Bundles>(rest.bundles());
  renamed->RenameShards(std::move(shards));
  return Plan(std::move(renamed), rest.exchanges(), rest.balance());
}

}  // namespace waybill
