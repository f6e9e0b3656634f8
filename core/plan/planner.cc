#include "core/plan/planner.h"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/assignment.h"
#include "core/plan/cover.h"
#include "core/plan/demands.h"
#include "core/plan/geometry.h"
#include "core/plan/plan_codec.h"
#include "core/plan/seams.h"
#include "core/plan/source_index.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

double SpeedOf(const Manifest& manifest) {
  double speed = 0;
  for (const Nic& nic : manifest.nics()) speed += static_cast<double>(nic.bytes_per_second);
  return speed;
}

// Hosts become numbers; speeds count only where every rank that holds anything declares one.
class Links {
 public:
  Links(absl::Span<const Manifest* const> trainers, absl::Span<const Manifest* const> workers) {
    const auto declared = [](const Manifest* m) {
      return SpeedOf(*m) > 0 || m->shard_count() == 0;
    };
    const bool use_speeds = std::all_of(trainers.begin(), trainers.end(), declared) &&
                            std::all_of(workers.begin(), workers.end(), declared);
    for (const Manifest* m : trainers) this->trainers.push_back(LinkOf(*m, use_speeds));
    for (const Manifest* m : workers) this->workers.push_back(LinkOf(*m, use_speeds));
  }

  std::vector<RankLink> trainers;
  std::vector<RankLink> workers;

 private:
  RankLink LinkOf(const Manifest& manifest, bool use_speeds) {
    RankLink link;
    if (use_speeds) link.bytes_per_second = SpeedOf(manifest);
    if (!manifest.host().empty()) {
      link.host = hosts_.try_emplace(manifest.host(), static_cast<uint32_t>(hosts_.size()) + 1)
                      .first->second;
    }
    return link;
  }

  absl::flat_hash_map<std::string, uint32_t> hosts_;
};

// Each trainer starts at another worker, so that no worker's link is crowded at the start, and
// writes a worker's memory in its order, so that neighbours become one write.
std::vector<uint32_t> SendingOrder(const std::vector<Shipment>& shipments,
                                   const std::vector<Demand>& demands,
                                   absl::Span<const Manifest* const> workers,
                                   uint32_t trainer_count) {
  using Key = std::tuple<uint32_t, uint32_t, uint32_t, uint64_t, uint32_t>;
  std::vector<Key> keys;
  keys.reserve(shipments.size());
  const auto worker_count = static_cast<uint32_t>(workers.size());
  for (uint32_t i = 0; i < shipments.size(); ++i) {
    const Demand& demand = demands[shipments[i].demand];
    const ShardView shard = workers[demand.worker]->shard(demand.destination_shard);
    const uint32_t trainer = shipments[i].holder.trainer;
    const auto start =
        static_cast<uint32_t>(uint64_t{trainer} * worker_count / trainer_count % worker_count);
    keys.emplace_back(trainer, (demand.worker + worker_count - start) % worker_count,
                      shard.place.region_index, OffsetWithin(shard, shipments[i].box), i);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<uint32_t> order;
  order.reserve(keys.size());
  for (const Key& key : keys) order.push_back(std::get<4>(key));
  return order;
}

Transform TransformOf(const Format& source, const Format& destination) {
  if (destination.content == Content::kQuantised) return Transform::kQuantise;
  if (source == destination) return Transform::kNone;
  if (source.dtype == Dtype::kBf16) return Transform::kBf16ToF32;
  if (source.dtype == Dtype::kF16) return Transform::kF16ToF32;
  return destination.dtype == Dtype::kBf16 ? Transform::kF32ToBf16 : Transform::kF32ToF16;
}

// A table of scales as if it were a shard, in a region of its own. Its strides go to `strides`.
ShardView AsShard(const ScaleTable& table, uint32_t region_index,
                  std::array<int64_t, kMaxDimensions>& strides) {
  std::array<int64_t, kMaxDimensions> extents;
  const int dimensions = table.cells.dimensions();
  for (int d = 0; d < dimensions; ++d) extents[static_cast<size_t>(d)] = table.cells.extent(d);
  const absl::Span<int64_t> used(strides.data(), static_cast<size_t>(dimensions));
  RowMajorStrides({extents.data(), used.size()}, used);
  return {.format = Format::Scales(table.quantisation),
          .box = table.cells,
          .place = {.region_index = region_index, .strides = used}};
}

absl::StatusOr<RouteView> MakeRoute(const Shipment& shipment, const Demand& demand,
                                    absl::Span<const Manifest* const> trainers,
                                    absl::Span<const Manifest* const> workers,
                                    absl::Span<const Exchange> exchanges,
                                    std::array<Axis, kMaxAxes>& axes) {
  const Manifest& trainer = *trainers[shipment.holder.trainer];
  ShardView source = trainer.shard(shipment.holder.shard);
  const Manifest& worker = *workers[demand.worker];
  const ShardView destination = worker.shard(demand.destination_shard);
  uint32_t scale_table = kNoScaleTable;
  std::array<int64_t, kMaxDimensions> strides;
  if (destination.format.content != Content::kPlain) {
    const Exchange& exchange = exchanges[shipment.holder.trainer];
    scale_table = FindScaleTable(exchange, shipment.holder.shard, destination.format.quantisation);
    if (destination.format.content == Content::kScales) {
      source = AsShard(exchange.tables[scale_table], trainer.region_count() + scale_table, strides);
    } else {
      WAYBILL_RETURN_IF_ERROR(While(
          absl::StrCat("tensor \"", worker.tensor_name(destination.tensor_index), "\": worker ",
                       demand.worker, " and trainer ", shipment.holder.trainer),
          CheckRowsAreNeighbours(source, destination, shipment.box)));
    }
  }
  const Transform transform = TransformOf(source.format, destination.format);
  const RouteShape shape{
      .transform = transform,
      .source_element_bytes = ElementBytes(source.format),
      .destination_element_bytes = ElementBytes(destination.format),
      .axes = MakeAxes(source, destination, shipment.box, transform == Transform::kQuantise, axes)};
  return RouteView{.trainer = shipment.holder.trainer,
                   .worker = demand.worker,
                   .source_shard = shipment.holder.shard,
                   .destination_shard = demand.destination_shard,
                   .source_region = source.place.region_index,
                   .destination_region = destination.place.region_index,
                   .source_offset_bytes = OffsetWithin(source, shipment.box),
                   .destination_offset_bytes = OffsetWithin(destination, shipment.box),
                   .scale_table = scale_table,
                   .witness = shipment.witness,
                   .box = shipment.box,
                   .shape = shape};
}

// A ledger lists the trainers in order, each one's routes in the order in which it sends them, so
// that a trainer's entries are neighbours.
void FillLedgers(Plan& plan) {
  for (RouteTable& table : plan.trainers) {
    for (uint32_t i = 0; i < table.size(); ++i) {
      RouteTable& ledger = plan.workers[table.worker(i)];
      table.set_ledger_entry(i, ledger.size());
      ledger.Add(table[i]);
    }
  }
}

absl::Status CheckOrders(absl::string_view role, absl::Span<const Manifest* const> manifests) {
  for (size_t rank = 0; rank < manifests.size(); ++rank) {
    WAYBILL_RETURN_IF_ERROR(While(absl::StrCat(role, " ", rank), CheckOrder(*manifests[rank])));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> MakePlan(absl::Span<const Manifest* const> trainers,
                              absl::Span<const Manifest* const> workers,
                              const PlanOptions& options) {
  if (trainers.empty() || workers.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan from ", trainers.size(), " trainers to ", workers.size(), " workers"));
  }
  WAYBILL_RETURN_IF_ERROR(CheckOrders("trainer", trainers));
  WAYBILL_RETURN_IF_ERROR(CheckOrders("worker", workers));
  WAYBILL_ASSIGN_OR_RETURN(const SourceIndex sources, SourceIndex::Build(trainers));
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<Demand> demands,
                           FindDemands(sources, trainers, workers));
  const Links links(trainers, workers);
  Assignment assignment =
      AssignDemands(sources, demands, links.trainers, links.workers, options.smallest_piece_bytes);
  Plan plan;
  plan.trainers.resize(trainers.size());
  plan.workers.resize(workers.size());
  plan.trainer_bytes.resize(trainers.size(), 0);
  plan.worker_bytes.resize(workers.size(), 0);
  plan.balance = assignment.balance;
  WAYBILL_RETURN_IF_ERROR(
      PlanExchanges(sources, demands, trainers, workers, assignment.shipments, plan.exchanges));
  std::array<Axis, kMaxAxes> axes;
  for (const uint32_t i : SendingOrder(assignment.shipments, demands, workers,
                                       static_cast<uint32_t>(trainers.size()))) {
    const Shipment& shipment = assignment.shipments[i];
    WAYBILL_ASSIGN_OR_RETURN(
        const RouteView route,
        MakeRoute(shipment, demands[shipment.demand], trainers, workers, plan.exchanges, axes));
    plan.trainers[route.trainer].Add(route);
    if (route.witness) continue;
    plan.trainer_bytes[route.trainer] += route.shape.size_bytes();
    plan.worker_bytes[route.worker] += route.shape.size_bytes();
  }
  FillLedgers(plan);
  WAYBILL_RETURN_IF_ERROR(While("prove the cover", CheckCover(plan, workers)));
  plan.hash = HashPlan(plan);
  return plan;
}

}  // namespace waybill
