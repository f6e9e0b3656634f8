#include "core/plan/route_codec.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/byte_codec.h"

namespace waybill {
namespace {

constexpr uint32_t kMagic = 0x54525957;  // "WYRT"
constexpr uint32_t kVersion = 2;

// One route's fixed part, as it is encoded. Its axes and bounds follow all of these.
struct Record {
  uint32_t trainer;
  uint32_t worker;
  uint32_t source_shard;
  uint32_t destination_shard;
  uint32_t source_region;
  uint32_t destination_region;
  uint64_t source_offset_bytes;
  uint64_t destination_offset_bytes;
  uint32_t ledger_entry;
  uint8_t transform;
  uint8_t source_element_bytes;
  uint8_t destination_element_bytes;
  uint8_t axis_count;
  uint8_t dimensions;
  uint8_t witness;
  uint8_t reserved[2];
  uint32_t scale_table;
};
static_assert(sizeof(Record) == 56);

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("routing table: ", what));
}

// Whether such elements become such others by the transform.
bool TransformFits(const Record& record) {
  const uint8_t from = record.source_element_bytes, to = record.destination_element_bytes;
  switch (static_cast<Transform>(record.transform)) {
    case Transform::kNone:
      return from == to && (from == 1 || from == 2 || from == 4 || from == 8);
    case Transform::kF32ToBf16:
    case Transform::kF32ToF16:
      return from == 4 && to == 2 && record.scale_table == kNoScaleTable;
    case Transform::kBf16ToF32:
    case Transform::kF16ToF32:
      return from == 2 && to == 4 && record.scale_table == kNoScaleTable;
    case Transform::kQuantise:
      return (from == 2 || from == 4) && to == 1 && record.scale_table != kNoScaleTable &&
             record.dimensions >= 2 && record.axis_count == record.dimensions;
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

absl::Status ReadRoute(const Record& record, ByteReader& reader, RouteTable& routes) {
  if (record.axis_count == 0 || record.axis_count > kMaxAxes ||
      record.dimensions > kMaxDimensions || !TransformFits(record)) {
    return Malformed("a route's fields are out of range");
  }
  std::array<Axis, kMaxAxes> axes;
  std::array<int64_t, kMaxDimensions> begins, ends;
  bool complete = true;
  for (size_t a = 0; a < record.axis_count; ++a) complete = complete && reader.Read(axes[a]);
  for (size_t d = 0; d < record.dimensions; ++d) complete = complete && reader.Read(begins[d]);
  for (size_t d = 0; d < record.dimensions; ++d) complete = complete && reader.Read(ends[d]);
  if (!complete) return Malformed("it ends in the middle of a route");
  const RouteView route{
      .trainer = record.trainer,
      .worker = record.worker,
      .source_shard = record.source_shard,
      .destination_shard = record.destination_shard,
      .source_region = record.source_region,
      .destination_region = record.destination_region,
      .source_offset_bytes = record.source_offset_bytes,
      .destination_offset_bytes = record.destination_offset_bytes,
      .ledger_entry = record.ledger_entry,
      .scale_table = record.scale_table,
      .witness = record.witness != 0,
      .box = Box({begins.data(), record.dimensions}, {ends.data(), record.dimensions}),
      .shape = {.transform = static_cast<Transform>(record.transform),
                .source_element_bytes = record.source_element_bytes,
                .destination_element_bytes = record.destination_element_bytes,
                .axes = {axes.data(), record.axis_count}}};
  WAYBILL_RETURN_IF_ERROR(CheckRoute(route));
  routes.Add(route);
  return absl::OkStatus();
}

}  // namespace

std::string EncodeRoutes(const RouteTable& routes) {
  std::string out;
  out.reserve(16 + routes.size() * (sizeof(Record) + 2 * sizeof(Axis) + 4 * sizeof(int64_t)));
  AppendBytes(out, kMagic);
  AppendBytes(out, kVersion);
  AppendBytes(out, uint64_t{routes.size()});
  for (uint32_t i = 0; i < routes.size(); ++i) {
    const RouteView route = routes[i];
    AppendBytes(
        out, Record{.trainer = route.trainer,
                    .worker = route.worker,
                    .source_shard = route.source_shard,
                    .destination_shard = route.destination_shard,
                    .source_region = route.source_region,
                    .destination_region = route.destination_region,
                    .source_offset_bytes = route.source_offset_bytes,
                    .destination_offset_bytes = route.destination_offset_bytes,
                    .ledger_entry = route.ledger_entry,
                    .transform = static_cast<uint8_t>(route.shape.transform),
                    .source_element_bytes = static_cast<uint8_t>(route.shape.source_element_bytes),
                    .destination_element_bytes =
                        static_cast<uint8_t>(route.shape.destination_element_bytes),
                    .axis_count = static_cast<uint8_t>(route.shape.axes.size()),
                    .dimensions = static_cast<uint8_t>(route.box.dimensions()),
                    .witness = route.witness,
                    .reserved = {},
                    .scale_table = route.scale_table});
    for (const Axis& axis : route.shape.axes) AppendBytes(out, axis);
    for (const int64_t begin : route.box.begins()) AppendBytes(out, begin);
    for (const int64_t end : route.box.ends()) AppendBytes(out, end);
  }
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
  if (!reader.Read(count) || count > reader.left() / sizeof(Record)) {
    return Malformed(absl::StrCat(count, " routes in ", bytes.size(), " bytes"));
  }
  RouteTable routes;
  routes.Reserve(static_cast<uint32_t>(count));
  uint64_t written_bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Record record;
    if (!reader.Read(record)) return Malformed("it ends in the middle of a route");
    WAYBILL_RETURN_IF_ERROR(ReadRoute(record, reader, routes));
    written_bytes += routes.written_bytes(static_cast<uint32_t>(i));
    if (written_bytes > kMaxPlanBytes) {
      return Malformed(absl::StrCat("more than ", kMaxPlanBytes, " bytes in an update"));
    }
  }
  if (reader.left() != 0) return Malformed(absl::StrCat(reader.left(), " bytes too many"));
  return routes;
}

}  // namespace waybill
