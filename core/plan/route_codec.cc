// SPDX-License-Identifier: Apache-2.0

#include "core/plan/route_codec.h"

#include <array>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/byte_codec.h"

namespace waybill {
namespace {

constexpr uint32_t kMagic = 0x54525957;  // "WYRT"
constexpr uint32_t kVersion = 4;

// All routes' properties. The columns of axes and bounds have as many items as the counts say.
struct Columns {
  std::vector<uint32_t> senders, receivers, source_shards, destination_shards;
  std::vector<uint32_t> source_regions, destination_regions;
  std::vector<uint64_t> source_offsets_bytes, destination_offsets_bytes;
  std::vector<uint32_t> scale_tables;
  std::vector<uint8_t> witnesses, transforms, source_element_bytes, destination_element_bytes;
  std::vector<uint8_t> axis_counts, dimensions;
  std::vector<int64_t> extents, source_strides, destination_strides;
  std::vector<int64_t> begins, ends;

  // Calls visit(column) for each column that has an item for each route.
  template <typename Visit>
  void ForEachOfRoutes(Visit visit) {
    visit(senders), visit(receivers), visit(source_shards), visit(destination_shards);
    visit(source_regions), visit(destination_regions);
    visit(source_offsets_bytes), visit(destination_offsets_bytes);
    visit(scale_tables), visit(witnesses), visit(transforms);
    visit(source_element_bytes), visit(destination_element_bytes);
    visit(axis_counts), visit(dimensions);
  }
  template <typename Visit>
  void ForEachOfAxes(Visit visit) {
    visit(extents), visit(source_strides), visit(destination_strides);
  }
};
constexpr size_t kColumnsOfRoutes = 15;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("routing table: ", what));
}

// Whether such elements become such others by the transform.
bool TransformFits(const RouteView& route) {
  const uint32_t from = route.shape.source_element_bytes;
  const uint32_t to = route.shape.destination_element_bytes;
  switch (route.shape.transform) {
    case Transform::kNone:
      return from == to && (from == 1 || from == 2 || from == 4 || from == 8);
    case Transform::kF32ToBf16:
    case Transform::kF32ToF16:
      return from == 4 && to == 2 && route.scale_table == kNoScaleTable;
    case Transform::kBf16ToF32:
    case Transform::kF16ToF32:
      return from == 2 && to == 4 && route.scale_table == kNoScaleTable;
    case Transform::kBf16ToF16:
      return from == 2 && to == 2 && route.scale_table == kNoScaleTable;
    case Transform::kQuantise:
      return (from == 2 || from == 4) && to == 1 && route.scale_table != kNoScaleTable &&
             route.box.dimensions() >= 2 &&
             route.shape.axes.size() == static_cast<size_t>(route.box.dimensions());
  }
  return false;
}

// Whether the walk from `offset` on along the axes ends below 2^63.
bool WalkFits(absl::Span<const Axis> axes, int64_t Axis::* stride, uint8_t element_bytes,
              uint64_t offset) {
  uint64_t end = offset;
  if (__builtin_add_overflow(end, element_bytes, &end)) return false;
  for (const Axis& axis : axes) {
    if (axis.extent < 1 || axis.*stride < 0) return false;
    uint64_t span;
    if (__builtin_mul_overflow(static_cast<uint64_t>(axis.extent - 1),
                               static_cast<uint64_t>(axis.*stride), &span) ||
        __builtin_add_overflow(end, span, &end)) {
      return false;
    }
  }
  return end < uint64_t{1} << 63;
}

bool WalksItsBox(const RouteView& route) {
  const auto in_box = CheckedElementCount(route.box);
  int64_t walked = 1;
  for (const Axis& axis : route.shape.axes) {
    if (__builtin_mul_overflow(walked, axis.extent, &walked)) return false;
  }
  if (in_box != walked) return false;
  if (route.shape.transform != Transform::kQuantise) return true;
  for (int d = 0; d < route.box.dimensions(); ++d) {
    if (route.shape.axes[static_cast<size_t>(d)].extent != route.box.extent(d)) return false;
  }
  return true;
}

absl::Status CheckRoute(const RouteView& route) {
  const RouteShape& shape = route.shape;
  if (!TransformFits(route)) return Malformed("a route's fields are out of range");
  if (!WalkFits(shape.axes, &Axis::source_stride, static_cast<uint8_t>(shape.source_element_bytes),
                route.source_offset_bytes) ||
      !WalkFits(shape.axes, &Axis::destination_stride,
                static_cast<uint8_t>(shape.destination_element_bytes),
                route.destination_offset_bytes) ||
      shape.axes.back().destination_stride != int64_t{shape.destination_element_bytes} ||
      !WalksItsBox(route)) {
    return Malformed("a route's axes do not fit its box or into 63 bits");
  }
  if (static_cast<uint64_t>(shape.element_count()) > kMaxPlanBytes) {
    return Malformed(absl::StrCat("a route of ", shape.element_count(), " elements"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Columns> ReadColumns(ByteReader& reader, size_t count) {
  Columns c;
  bool complete = true;
  const auto read = [&](auto& column) { complete = complete && ReadColumn(reader, column); };
  c.ForEachOfRoutes([&](auto& column) {
    column.resize(count);
    read(column);
  });
  size_t axes = 0, bounds = 0;
  for (size_t i = 0; complete && i < count; ++i) {
    if (c.axis_counts[i] == 0 || c.axis_counts[i] > kMaxAxes || c.dimensions[i] > kMaxDimensions) {
      return Malformed("a route's fields are out of range");
    }
    axes += c.axis_counts[i];
    bounds += c.dimensions[i];
  }
  if (!complete || 3 * axes + 2 * bounds > reader.left()) {
    return Malformed("it ends in the middle of a route");
  }
  c.ForEachOfAxes([&](auto& column) {
    column.resize(axes);
    read(column);
  });
  for (std::vector<int64_t>* column : {&c.begins, &c.ends}) {
    column->resize(bounds);
    read(*column);
  }
  if (!complete) return Malformed("it ends in the middle of a route");
  return c;
}

}  // namespace

std::string EncodeRoutes(const RouteTable& routes) {
  Columns c;
  c.ForEachOfRoutes([&](auto& column) { column.reserve(routes.size()); });
  for (uint32_t i = 0; i < routes.size(); ++i) {
    const RouteView route = routes[i];
    c.senders.push_back(route.sender);
    c.receivers.push_back(route.receiver);
    c.source_shards.push_back(route.source_shard);
    c.destination_shards.push_back(route.destination_shard);
    c.source_regions.push_back(route.source_region);
    c.destination_regions.push_back(route.destination_region);
    c.source_offsets_bytes.push_back(route.source_offset_bytes);
    c.destination_offsets_bytes.push_back(route.destination_offset_bytes);
    c.scale_tables.push_back(route.scale_table);
    c.witnesses.push_back(route.witness);
    c.transforms.push_back(static_cast<uint8_t>(route.shape.transform));
    c.source_element_bytes.push_back(static_cast<uint8_t>(route.shape.source_element_bytes));
    c.destination_element_bytes.push_back(
        static_cast<uint8_t>(route.shape.destination_element_bytes));
    c.axis_counts.push_back(static_cast<uint8_t>(route.shape.axes.size()));
    c.dimensions.push_back(static_cast<uint8_t>(route.box.dimensions()));
    for (const Axis& axis : route.shape.axes) {
      c.extents.push_back(axis.extent);
      c.source_strides.push_back(axis.source_stride);
      c.destination_strides.push_back(axis.destination_stride);
    }
    c.begins.insert(c.begins.end(), route.box.begins().begin(), route.box.begins().end());
    c.ends.insert(c.ends.end(), route.box.ends().begin(), route.box.ends().end());
  }
  std::string out;
  AppendBytes(out, kMagic);
  AppendBytes(out, kVersion);
  AppendBytes(out, uint64_t{routes.size()});
  const auto append = [&](const auto& column) { AppendColumn(out, column); };
  c.ForEachOfRoutes(append);
  c.ForEachOfAxes(append);
  append(c.begins);
  append(c.ends);
  return out;
}

absl::StatusOr<RouteTable> DecodeRoutes(absl::string_view bytes) {
  ByteReader reader(bytes);
  uint32_t magic = 0, version = 0;
  uint64_t count = 0;
  if (!reader.Read(magic) || !reader.Read(version) || magic != kMagic) {
    return Malformed(absl::StrCat(bytes.size(), " bytes are not its encoding"));
  }
  if (version != kVersion) {
    return Malformed(absl::StrCat("version ", version, ", this program knows ", kVersion));
  }
  if (!reader.Read(count) || count > reader.left() / kColumnsOfRoutes) {
    return Malformed(absl::StrCat(count, " routes in ", bytes.size(), " bytes"));
  }
  WAYBILL_ASSIGN_OR_RETURN(const Columns c, ReadColumns(reader, count));
  RouteTable routes;
  routes.Reserve(static_cast<uint32_t>(count));
  size_t axis = 0, bound = 0;
  std::array<Axis, kMaxAxes> axes;
  for (size_t i = 0; i < count; ++i) {
    for (size_t a = 0; a < c.axis_counts[i]; ++a, ++axis) {
      axes[a] = {c.extents[axis], c.source_strides[axis], c.destination_strides[axis]};
    }
    const auto dimensions = size_t{c.dimensions[i]};
    const RouteView route{.sender = c.senders[i],
                          .receiver = c.receivers[i],
                          .source_shard = c.source_shards[i],
                          .destination_shard = c.destination_shards[i],
                          .source_region = c.source_regions[i],
                          .destination_region = c.destination_regions[i],
                          .source_offset_bytes = c.source_offsets_bytes[i],
                          .destination_offset_bytes = c.destination_offsets_bytes[i],
                          .scale_table = c.scale_tables[i],
                          .witness = c.witnesses[i] != 0,
                          .box = Box(absl::MakeConstSpan(c.begins).subspan(bound, dimensions),
                                     absl::MakeConstSpan(c.ends).subspan(bound, dimensions)),
                          .shape = {.transform = static_cast<Transform>(c.transforms[i]),
                                    .source_element_bytes = c.source_element_bytes[i],
                                    .destination_element_bytes = c.destination_element_bytes[i],
                                    .axes = {axes.data(), c.axis_counts[i]}}};
    bound += dimensions;
    routes.Add(route);
  }
  if (reader.left() != 0) return Malformed(absl::StrCat(reader.left(), " bytes too many"));
  WAYBILL_RETURN_IF_ERROR(CheckRoutes(routes));
  return routes;
}

absl::Status CheckRoutes(const RouteTable& routes) {
  uint64_t written_bytes = 0;
  for (uint32_t i = 0; i < routes.size(); ++i) {
    WAYBILL_RETURN_IF_ERROR(CheckRoute(routes[i]));
    written_bytes += routes.written_bytes(i);
    if (written_bytes > kMaxPlanBytes) {
      return Malformed(absl::StrCat("more than ", kMaxPlanBytes, " bytes in an update"));
    }
  }
  return absl::OkStatus();
}

}  // namespace waybill
