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

absl::Status ReadRoute(const Record& record, ByteReader& reader, RouteTable& routes) {
  if (record.axis_count == 0 || record.axis_count > kMaxAxes ||
      record.dimensions > kMaxDimensions || record.transform == 0 ||
      record.transform > static_cast<uint8_t>(Transform::kQuantise) ||
      record.source_element_bytes == 0 || record.destination_element_bytes == 0) {
    return Malformed("a route's fields are out of range");
  }
  std::array<Axis, kMaxAxes> axes;
  std::array<int64_t, kMaxDimensions> begins, ends;
  bool complete = true;
  for (size_t a = 0; a < record.axis_count; ++a) complete = complete && reader.Read(axes[a]);
  for (size_t d = 0; d < record.dimensions; ++d) complete = complete && reader.Read(begins[d]);
  for (size_t d = 0; d < record.dimensions; ++d) complete = complete && reader.Read(ends[d]);
  if (!complete) return Malformed("it ends in the middle of a route");
  routes.Add({.trainer = record.trainer,
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
                        .axes = {axes.data(), record.axis_count}}});
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
  for (uint64_t i = 0; i < count; ++i) {
    Record record;
    if (!reader.Read(record)) return Malformed("it ends in the middle of a route");
    WAYBILL_RETURN_IF_ERROR(ReadRoute(record, reader, routes));
  }
  if (reader.left() != 0) return Malformed(absl::StrCat(reader.left(), " bytes too many"));
  return routes;
}

}  // namespace waybill
