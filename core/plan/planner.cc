// SPDX-License-Identifier: Apache-2.0

#include "core/plan/planner.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/assignment.h"
#include "core/plan/bundles.h"
#include "core/plan/cover.h"
#include "core/plan/demands.h"
#include "core/plan/geometry.h"
#include "core/plan/rank_classes.h"
#include "core/plan/seams.h"
#include "core/plan/source_index.h"
#include "core/plan/tensor_classes.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

double SpeedOf(const Manifest& manifest) {
  double speed = 0;
  for (const Nic& nic : manifest.nics()) speed += static_cast<double>(nic.bytes_per_second);
  return speed;
}

// Hosts and racks become numbers; speeds count only where every rank that holds anything declares
// one.
class Links {
 public:
  Links(absl::Span<const Manifest* const> senders, absl::Span<const Manifest* const> receivers) {
    const auto declared = [](const Manifest* m) {
      return SpeedOf(*m) > 0 || m->shard_count() == 0;
    };
    const bool use_speeds = std::all_of(senders.begin(), senders.end(), declared) &&
                            std::all_of(receivers.begin(), receivers.end(), declared);
    for (const Manifest* m : senders) this->senders.push_back(LinkOf(*m, use_speeds));
    for (const Manifest* m : receivers) this->receivers.push_back(LinkOf(*m, use_speeds));
    speeds_are_known = use_speeds;
  }

  bool speeds_are_known = false;
  std::vector<RankLink> senders;
  std::vector<RankLink> receivers;

 private:
  RankLink LinkOf(const Manifest& manifest, bool use_speeds) {
    RankLink link;
    if (use_speeds) link.bytes_per_second = SpeedOf(manifest);
    link.host = NumberOf(manifest.host(), hosts_);
    link.rack = NumberOf(manifest.rack(), racks_);
    return link;
  }

  using Numbers = absl::flat_hash_map<std::string, uint32_t>;
  // Numbers begin at 1; 0 is an unknown place.
  static uint32_t NumberOf(const std::string& name, Numbers& numbers) {
    if (name.empty()) return 0;
    return numbers.try_emplace(name, static_cast<uint32_t>(numbers.size()) + 1).first->second;
  }

  Numbers hosts_;
  Numbers racks_;
};

Transform TransformOf(const Format& source, const Format& destination) {
  if (source == destination) return Transform::kNone;
  if (AreSameBytes(source.dtype, destination.dtype) && destination.content == Content::kPlain) {
    return Transform::kNone;
  }
  if (destination.content == Content::kQuantised) return Transform::kQuantise;
  if (source.dtype == Dtype::kBf16) {
    return destination.dtype == Dtype::kF16 ? Transform::kBf16ToF16 : Transform::kBf16ToF32;
  }
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

// The route of a shipment's first tensor to its first destination.
absl::StatusOr<RouteView> MakeRoute(const Shipment& shipment, const PlannedRanks& ranks,
                                    const Demand& demand,
                                    absl::Span<const ExchangePattern> exchanges,
                                    std::array<Axis, kMaxAxes>& axes) {
  const Want& want = ranks.wants[demand.want];
  const Recipient& to =
      ranks.destinations[want.first_destination + shipment.copies.first_destination];
  const uint32_t tensor = ranks.tensors.members(want.tensor_class)[shipment.copies.first_member];
  const bool relayed = shipment.holder.sender >= ranks.senders.rank_count();
  const Holding& held = (relayed ? ranks.tensors.wanted(tensor)
                                 : ranks.tensors.held(tensor))[shipment.holder.holding];
  const Holding& wanted = ranks.tensors.wanted(tensor)[to.holding];
  const Manifest& sender = (relayed ? ranks.receivers : ranks.senders).manifest(held.rank_class);
  const Manifest& receiver = ranks.receivers.manifest(wanted.rank_class);
  ShardView source = sender.shard(held.shard);
  const ShardView destination = receiver.shard(wanted.shard);
  uint32_t scale_table = kNoScaleTable;
  std::array<int64_t, kMaxDimensions> strides;
  if (destination.format.content != Content::kPlain && !relayed) {
    const ExchangePattern& exchange = exchanges[shipment.holder.sender];
    const uint32_t table = FindScaleTable(exchange, want.tensor_class, shipment.holder.holding,
                                          destination.format.quantisation);
    scale_table = exchange.classes[table].first_table + shipment.copies.first_member;
    if (destination.format.content == Content::kScales) {
      source =
          AsShard(exchange.of_first.tables[table], sender.region_count() + scale_table, strides);
    } else {
      WAYBILL_RETURN_IF_ERROR(
          While(absl::StrCat("tensor \"", receiver.tensor_name(destination.tensor_index),
                             "\": worker ", to.receiver, " and trainer ", shipment.holder.sender),
                CheckRowsAreNeighbours(source, destination, shipment.box)));
    }
  }
  const Transform transform = TransformOf(source.format, destination.format);
  const RouteShape shape{
      .transform = transform,
      .source_element_bytes = ElementBytes(source.format),
      .destination_element_bytes = ElementBytes(destination.format),
      .axes = MakeAxes(source, destination, shipment.box, transform == Transform::kQuantise, axes)};
  return RouteView{.sender = shipment.holder.sender,
                   .receiver = to.receiver,
                   .source_shard = held.shard,
                   .destination_shard = wanted.shard,
                   .source_region = source.place.region_index,
                   .destination_region = destination.place.region_index,
                   .source_offset_bytes = OffsetWithin(source, shipment.box),
                   .destination_offset_bytes = OffsetWithin(destination, shipment.box),
                   .scale_table = scale_table,
                   .witness = shipment.witness,
                   .box = shipment.box,
                   .shape = shape};
}

absl::Status CheckOrders(absl::string_view role, const RankClasses& ranks) {
  for (uint32_t c = 0; c < ranks.size(); ++c) {
    WAYBILL_RETURN_IF_ERROR(
        While(absl::StrCat(role, " ", ranks.ranks(c).front()), CheckOrder(ranks.manifest(c))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> MakePlan(absl::Span<const Manifest* const> senders,
                              absl::Span<const Manifest* const> receivers,
                              const PlanOptions& options) {
  if (senders.empty() || receivers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a plan from ", senders.size(), " trainers to ",
                                                   receivers.size(), " workers"));
  }
  if (std::max(senders.size(), receivers.size()) > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan from ", senders.size(), " trainers to ", receivers.size(),
                     " workers; there may be at most ", kMostRanks, " of each"));
  }
  auto ranks = std::make_shared<PlannedRanks>();
  ranks->senders = RankClasses(senders);
  ranks->receivers = RankClasses(receivers);
  WAYBILL_RETURN_IF_ERROR(CheckOrders("trainer", ranks->senders));
  WAYBILL_RETURN_IF_ERROR(CheckOrders("worker", ranks->receivers));
  WAYBILL_ASSIGN_OR_RETURN(ranks->tensors, TensorClasses::Build(ranks->senders, ranks->receivers));
  const SourceIndex sources(ranks->tensors, ranks->senders);
  WAYBILL_ASSIGN_OR_RETURN(Demands demands, FindDemands(sources, ranks->receivers));
  const Links links(senders, receivers);
  const bool known = links.speeds_are_known || options.relays == Relays::kAlways;
  Assignment assignment =
      AssignDemands(sources, demands, links.senders, links.receivers, options.smallest_piece_bytes,
                    known ? options.relays : Relays::kNever);
  std::vector<ExchangePattern> exchanges;
  WAYBILL_RETURN_IF_ERROR(
      PlanExchanges(sources, demands, ranks->receivers, assignment.shipments, exchanges));
  ranks->destinations = std::move(demands.destinations);
  ranks->wants = std::move(demands.wants);
  ranks->relays = assignment.relays;
  auto bundles = std::make_shared<Bundles>(ranks);
  std::array<Axis, kMaxAxes> axes;
  for (const Shipment& shipment : assignment.shipments) {
    const Demand& demand = demands.demands[shipment.demand];
    WAYBILL_ASSIGN_OR_RETURN(const RouteView route,
                             MakeRoute(shipment, *ranks, demand, exchanges, axes));
    bundles->Add({.want = demand.want,
                  .holding = shipment.holder.holding,
                  .copies = shipment.copies,
                  .relayed = shipment.holder.sender >= senders.size()},
                 route);
  }
  bundles->Finish();
  WAYBILL_RETURN_IF_ERROR(While("prove the cover", CheckCover(*bundles)));
  return Plan(std::move(bundles), std::move(exchanges), assignment.balance);
}

}  // namespace waybill
