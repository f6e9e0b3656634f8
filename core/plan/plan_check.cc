// SPDX-License-Identifier: Apache-2.0

#include "core/plan/plan_check.h"

#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/exchange.h"
#include "core/plan/geometry.h"
#include "core/tensor/box.h"
#include "core/tensor/format.h"
#include "core/tensor/quantisation.h"

namespace waybill {
namespace {

// One shard is served in as many quantisations at most.
constexpr uint32_t kMaxTablesOfShard = 16;

absl::Status Refused(uint32_t route, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("route ", route, " of the plan: ", what));
}

// The bytes from a shard's first to its last.
uint64_t ShardSpanBytes(const ShardView& shard) {
  uint64_t span = ElementBytes(shard.format);
  for (int d = 0; d < shard.box.dimensions(); ++d) {
    span += static_cast<uint64_t>(shard.box.extent(d) - 1) *
            static_cast<uint64_t>(shard.place.strides[static_cast<size_t>(d)]) *
            ElementBytes(shard.format);
  }
  return span;
}

// One end of a route: what is read or written of this rank's memory.
struct End {
  uint32_t shard;
  uint32_t region;
  uint64_t offset_bytes;
  uint64_t span_bytes;
  uint32_t element_bytes;
};

// Checks that the end lies in its shard, from the place of the box's first element on.
absl::Status CheckEnd(const Manifest& manifest, const RouteView& route, uint32_t index,
                      const End& end) {
  if (end.shard >= manifest.shard_count()) {
    return Refused(index, absl::StrCat("shard ", end.shard, " of ", manifest.shard_count()));
  }
  const ShardView shard = manifest.shard(end.shard);
  const std::string what = absl::StrCat("tensor \"", manifest.tensor_name(shard.tensor_index),
                                        "\" ", ToString(shard.box));
  if (route.box.empty() || !shard.box.Contains(route.box)) {
    return Refused(index, absl::StrCat(ToString(route.box), " is not in ", what));
  }
  if (end.element_bytes != ElementBytes(shard.format)) {
    return Refused(index, absl::StrCat(what, ": elements of ", end.element_bytes,
                                       " bytes, the shard has ", ElementBytes(shard.format)));
  }
  if (end.region != shard.place.region_index) {
    return Refused(index, absl::StrCat(what, ": region ", end.region, ", the shard is in region ",
                                       shard.place.region_index));
  }
  const uint64_t first = shard.place.offset_bytes;
  if (end.offset_bytes != OffsetWithin(shard, route.box) ||
      end.offset_bytes + end.span_bytes > first + ShardSpanBytes(shard)) {
    return Refused(index, absl::StrCat(what, ": bytes [", end.offset_bytes, ", ",
                                       end.offset_bytes + end.span_bytes,
                                       ") are not where it lies, which is in [", first, ", ",
                                       first + ShardSpanBytes(shard), ")"));
  }
  return absl::OkStatus();
}

// Scales are read as if each table were a region, behind those of the manifest.
absl::Status CheckScaleSource(const Manifest& manifest, const Exchange& exchange,
                              const RouteView& route, uint32_t index) {
  const ScaleTable& table = exchange.tables[route.scale_table];
  const uint32_t element_bytes = SizeBytes(table.quantisation.scale_dtype);
  if (route.source_region != manifest.region_count() + route.scale_table ||
      route.source_shard != table.shard || route.shape.source_element_bytes != element_bytes ||
      route.source_offset_bytes + route.shape.source_span_bytes() > table.size_bytes()) {
    return Refused(index, absl::StrCat("it reads outside of scale table ", route.scale_table));
  }
  return absl::OkStatus();
}

absl::Status CheckSenderRoute(const Manifest& manifest, const Exchange& exchange,
                              const RouteView& route, uint32_t index) {
  const bool quantises = route.shape.transform == Transform::kQuantise;
  if (route.scale_table != kNoScaleTable && !quantises) {
    return CheckScaleSource(manifest, exchange, route, index);
  }
  WAYBILL_RETURN_IF_ERROR(CheckEnd(manifest, route, index,
                                   {.shard = route.source_shard,
                                    .region = route.source_region,
                                    .offset_bytes = route.source_offset_bytes,
                                    .span_bytes = route.shape.source_span_bytes(),
                                    .element_bytes = route.shape.source_element_bytes}));
  if (quantises && exchange.tables[route.scale_table].shard != route.source_shard) {
    return Refused(
        index, absl::StrCat("it quantises shard ", route.source_shard, " by the scales of shard ",
                            exchange.tables[route.scale_table].shard));
  }
  return absl::OkStatus();
}

absl::Status CheckTable(const Manifest& manifest, const ScaleTable& table, uint32_t index) {
  const auto refused = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("scale table ", index, " of the plan: ", what));
  };
  if (table.shard >= manifest.shard_count()) {
    return refused(absl::StrCat("shard ", table.shard, " of ", manifest.shard_count()));
  }
  const ShardView shard = manifest.shard(table.shard);
  const auto shape = manifest.tensor_shape(shard.tensor_index);
  WAYBILL_RETURN_IF_ERROR(CheckConversion(shard.format, Format::Quantised(table.quantisation)));
  if (shape.size() < 2) return refused("the tensor is no matrix");
  const Extents2 block = BlockExtents(table.quantisation, shape);
  const Extents2 cell = ScaleExtents(table.quantisation, shape);
  const Box blocks = CellsMeeting(shard.box, block);
  if (shard.place.region_index != table.source_region ||
      shard.place.offset_bytes != table.source_offset_bytes ||
      shard.format.dtype != table.source_dtype ||
      shard.place.strides != absl::MakeConstSpan(table.source_strides) || shard.box != table.box ||
      block != table.block || cell != table.cell || blocks != table.blocks ||
      CellsOfBlocks(blocks, block, cell, shape) != table.cells) {
    return refused(absl::StrCat("it is not that of tensor \"",
                                manifest.tensor_name(shard.tensor_index), "\" ",
                                ToString(shard.box)));
  }
  const int last = table.box.dimensions() - 1;
  if (table.source_strides.back() != 1 && table.box.extent(last) != 1) {
    return refused(absl::StrCat("a stride of ", table.source_strides.back(),
                                " along the last dimension, which must be 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckTables(const Manifest& manifest, const Exchange& exchange) {
  std::map<uint32_t, uint32_t> tables_of_shard;
  for (uint32_t i = 0; i < exchange.tables.size(); ++i) {
    WAYBILL_RETURN_IF_ERROR(CheckTable(manifest, exchange.tables[i], i));
    if (++tables_of_shard[exchange.tables[i].shard] > kMaxTablesOfShard) {
      return absl::InvalidArgumentError(absl::StrCat("the plan has more than ", kMaxTablesOfShard,
                                                     " scale tables for shard ",
                                                     exchange.tables[i].shard));
    }
  }
  return absl::OkStatus();
}

// A sender's routes to one receiver are neighbours.
absl::Status CheckOrderOfReceivers(const RouteTable& routes) {
  absl::flat_hash_set<uint32_t> receivers;
  for (uint32_t r = 0; r < routes.size(); ++r) {
    if (routes.sender(r) != routes.sender(0)) {
      return Refused(r, absl::StrCat("it is of trainer ", routes.sender(r), ", the first of ",
                                     routes.sender(0)));
    }
    const bool continues = r > 0 && routes.receiver(r) == routes.receiver(r - 1);
    if (!continues && !receivers.insert(routes.receiver(r)).second) {
      return Refused(r, absl::StrCat("worker ", routes.receiver(r), " again, after others"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSender(const RankPlan& plan, const Manifest& manifest) {
  WAYBILL_RETURN_IF_ERROR(CheckSenderPlan(plan));
  WAYBILL_RETURN_IF_ERROR(CheckTables(manifest, plan.exchange));
  WAYBILL_RETURN_IF_ERROR(CheckOrderOfReceivers(plan.routes));
  for (uint32_t r = 0; r < plan.routes.size(); ++r) {
    WAYBILL_RETURN_IF_ERROR(CheckSenderRoute(manifest, plan.exchange, plan.routes[r], r));
  }
  return absl::OkStatus();
}

absl::Status CheckReceiver(const RankPlan& plan, const Manifest& manifest) {
  const RouteTable& routes = plan.routes;
  if (!plan.exchange.tables.empty() || !plan.exchange.outgoing.empty() ||
      !plan.exchange.incoming.empty()) {
    return absl::InvalidArgumentError("the plan of a worker has scale tables or messages");
  }
  const uint64_t held_bytes = manifest.total_bytes();
  uint64_t written_bytes = 0;
  for (uint32_t r = 0; r < routes.size(); ++r) {
    const RouteView route = routes[r];
    if (route.receiver != routes.receiver(0)) {
      return Refused(r, absl::StrCat("it is to worker ", route.receiver, ", the first to ",
                                     routes.receiver(0)));
    }
    WAYBILL_RETURN_IF_ERROR(CheckEnd(manifest, route, r,
                                     {.shard = route.destination_shard,
                                      .region = route.destination_region,
                                      .offset_bytes = route.destination_offset_bytes,
                                      .span_bytes = route.shape.destination_span_bytes(),
                                      .element_bytes = route.shape.destination_element_bytes}));
    written_bytes += routes.written_bytes(r);
    if (written_bytes > held_bytes) {
      return Refused(r, absl::StrCat("with it more than the ", held_bytes,
                                     " bytes of all shards are written"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRankPlan(const RankPlan& plan, const Manifest& manifest, Role role) {
  return role == Role::kTrainer ? CheckSender(plan, manifest) : CheckReceiver(plan, manifest);
}

absl::Status CheckDestinations(const RouteTable& routes, uint32_t first, uint32_t last,
                               absl::Span<const uint64_t> region_bytes) {
  for (uint32_t r = first; r < last; ++r) {
    const uint32_t region = routes.destination_region(r);
    if (region >= region_bytes.size()) {
      return Refused(r, absl::StrCat("region ", region, " of worker ", routes.receiver(r),
                                     ", which has ", region_bytes.size()));
    }
    const uint64_t end = routes.destination_offset(r) + routes.shape(r).destination_span_bytes();
    if (end > region_bytes[region]) {
      return Refused(r, absl::StrCat("bytes [", routes.destination_offset(r), ", ", end,
                                     ") of region ", region, " of worker ", routes.receiver(r),
                                     ", which has ", region_bytes[region], " bytes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace waybill
