// SPDX-License-Identifier: Apache-2.0

// An ordered table of routes, stored as columns: all routes that a sender writes, or that a
// receiver receives.
#ifndef WAYBILL_CORE_PLAN_ROUTE_TABLE_H_
#define WAYBILL_CORE_PLAN_ROUTE_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/box.h"
#include "core/tensor/format.h"

namespace waybill {

// The conversion of elements between source and destination.
enum class Transform : uint8_t {
  kNone = 1,
  kF32ToBf16 = 2,  // Casts round to the nearest, ties to even.
  kQuantise = 3,   // Uses the scales of a scale table. The axes are the box's dimensions.
  kF32ToF16 = 4,
  kBf16ToF32 = 5,
  kF16ToF32 = 6,
  kBf16ToF16 = 7,
};

// The scale table of a route that neither quantises nor brings scales.
inline constexpr uint32_t kNoScaleTable = ~uint32_t{0};

// The most axes of a route: the box's, plus one with extent 1.
inline constexpr int kMaxAxes = kMaxDimensions + 1;

// One loop of a route's walk through both memories. Strides in bytes.
struct Axis {
  int64_t extent = 0;
  int64_t source_stride = 0;
  int64_t destination_stride = 0;

  bool operator==(const Axis&) const = default;
};

// The geometry of a route, without ranks and addresses. It is all that staging needs.
//
// The axes are those of the box in the destination's order, slowest first; axes that are contiguous
// in both memories are merged, so that the last axis is the longest possible run. There is at least
// one axis, and the destination stride of the last axis is the element size (its extent is 1 if no
// elements of the destination are neighbours). "The bytes of a route" are the destination's
// elements in the order of this walk. The route's digest is computed over them.
struct RouteShape {
  Transform transform = Transform::kNone;
  uint32_t source_element_bytes = 0;
  uint32_t destination_element_bytes = 0;
  absl::Span<const Axis> axes;

  int64_t element_count() const;
  uint64_t size_bytes() const;  // The size at the destination.

  // The number of bytes from the first byte of the first element to the last byte of the last
  // element, in each memory.
  uint64_t source_span_bytes() const;
  uint64_t destination_span_bytes() const;

  // The length of the contiguous runs at the destination, which is the most that one write can
  // carry.
  uint64_t destination_run_bytes() const;
  // Returns true if source elements along the last axis are not neighbours, so that tiles must be
  // transposed.
  bool transposed() const {
    return axes.back().source_stride != static_cast<int64_t>(source_element_bytes);
  }
};

struct RouteView {
  uint32_t sender = 0;  // Ranks.
  uint32_t receiver = 0;
  uint32_t source_shard = 0;  // The shard in the sender's manifest.
  uint32_t destination_shard = 0;
  uint32_t source_region = 0;
  uint32_t destination_region = 0;
  uint64_t source_offset_bytes = 0;
  uint64_t destination_offset_bytes = 0;
  // The scale table in the sender's Exchange by which the route quantises, or whose scales it
  // brings. Each scale table is also a source region, numbered after the regions of the sender's
  // manifest.
  uint32_t scale_table = kNoScaleTable;
  // The sender writes only the digest of the bytes. Another sender writes the bytes.
  bool witness = false;
  Box box;           // Within the tensor, or within the grid of scales.
  RouteShape shape;  // The axes point into the table.
};

class RouteTable {
 public:
  uint32_t size() const { return static_cast<uint32_t>(senders_.size()); }
  bool empty() const { return senders_.empty(); }
  RouteView operator[](uint32_t i) const;

  // Single fields, without building the whole view.
  uint32_t receiver(uint32_t i) const { return receivers_[i]; }
  uint32_t sender(uint32_t i) const { return senders_[i]; }
  uint32_t source_region(uint32_t i) const { return source_regions_[i]; }
  uint64_t source_offset(uint32_t i) const { return source_offsets_[i]; }
  uint32_t destination_region(uint32_t i) const { return destination_regions_[i]; }
  uint64_t destination_offset(uint32_t i) const { return destination_offsets_[i]; }
  uint32_t scale_table(uint32_t i) const { return scale_tables_[i]; }
  bool witness(uint32_t i) const { return witnesses_[i]; }
  // Returns true if the route brings scales.
  bool reads_scales(uint32_t i) const {
    return scale_tables_[i] != kNoScaleTable && transforms_[i] != Transform::kQuantise;
  }
  Box box(uint32_t i) const;
  RouteShape shape(uint32_t i) const;
  // Returns the number of bytes that the route writes, which is 0 for a witness.
  uint64_t written_bytes(uint32_t i) const { return witness(i) ? 0 : shape(i).size_bytes(); }

  void Add(const RouteView& route);
  void Reserve(uint32_t routes);

  uint64_t total_bytes() const;  // The sum of written_bytes().
  bool operator==(const RouteTable&) const = default;

 private:
  std::vector<uint32_t> senders_;
  std::vector<uint32_t> receivers_;
  std::vector<uint32_t> source_shards_;
  std::vector<uint32_t> destination_shards_;
  std::vector<uint32_t> source_regions_;
  std::vector<uint32_t> destination_regions_;
  std::vector<uint64_t> source_offsets_;
  std::vector<uint64_t> destination_offsets_;
  std::vector<uint32_t> scale_tables_;
  std::vector<bool> witnesses_;
  std::vector<Transform> transforms_;
  std::vector<uint8_t> source_element_bytes_;
  std::vector<uint8_t> destination_element_bytes_;
  std::vector<Axis> axes_;
  std::vector<uint32_t> axis_ends_;
  std::vector<int64_t> bounds_;  // By route: the begins, then the ends, of the box.
  std::vector<uint32_t> bound_ends_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_ROUTE_TABLE_H_
