// SPDX-License-Identifier: Apache-2.0

#include "core/plan/geometry.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace waybill {

uint64_t OffsetWithin(const ShardView& shard, const Box& box) {
  int64_t elements = 0;
  for (int d = 0; d < box.dimensions(); ++d) {
    elements += (box.begin(d) - shard.box.begin(d)) * shard.place.strides[static_cast<size_t>(d)];
  }
  return shard.place.offset_bytes + static_cast<uint64_t>(elements) * ElementBytes(shard.format);
}

namespace {

absl::Span<const Axis> EveryDimension(const ShardView& source, const ShardView& destination,
                                      const Box& box, std::array<Axis, kMaxAxes>& axes) {
  const int64_t source_bytes = ElementBytes(source.format);
  const int64_t destination_bytes = ElementBytes(destination.format);
  const auto count = static_cast<size_t>(box.dimensions());
  for (size_t d = count; d-- > 0;) {
    axes[d] = {box.extent(static_cast<int>(d)), source.place.strides[d] * source_bytes,
               destination.place.strides[d] * destination_bytes};
    if (axes[d].extent > 1) continue;
    // Any stride is right here; this one lets runs continue.
    const bool last = d + 1 == count;
    axes[d].source_stride = last ? source_bytes : axes[d + 1].source_stride * axes[d + 1].extent;
    axes[d].destination_stride =
        last ? destination_bytes : axes[d + 1].destination_stride * axes[d + 1].extent;
  }
  return {axes.data(), count};
}

}  // namespace

absl::Status CheckRowsAreNeighbours(const ShardView& source, const ShardView& destination,
                                    const Box& box) {
  const auto last = static_cast<size_t>(box.dimensions()) - 1;
  for (const ShardView* shard : {&source, &destination}) {
    const auto strides = shard->place.strides;
    bool fits = strides[last] == 1 || box.extent(box.dimensions() - 1) == 1;
    for (size_t d = 0; d < last; ++d) {
      const bool counts = box.extent(static_cast<int>(d)) > 1;
      fits = fits && (!counts || shard == &source || strides[d] >= strides[d + 1]);
    }
    if (fits) continue;
    return absl::InvalidArgumentError(absl::StrCat("strides [", absl::StrJoin(strides, ", "),
                                                   "] of the ",
                                                   shard == &source ? "trainer" : "worker",
                                                   ": elements that are quantised on the way lie "
                                                   "in rows, the last dimension's as neighbours"));
  }
  return absl::OkStatus();
}

absl::Span<const Axis> MakeAxes(const ShardView& source, const ShardView& destination,
                                const Box& box, bool quantises, std::array<Axis, kMaxAxes>& axes) {
  const int64_t source_bytes = ElementBytes(source.format);
  const int64_t destination_bytes = ElementBytes(destination.format);
  if (quantises) return EveryDimension(source, destination, box, axes);
  size_t count = 0;
  for (int d = 0; d < box.dimensions(); ++d) {
    if (box.extent(d) == 1) continue;
    const auto at_d = static_cast<size_t>(d);
    const Axis axis{.extent = box.extent(d),
                    .source_stride = source.place.strides[at_d] * source_bytes,
                    .destination_stride = destination.place.strides[at_d] * destination_bytes};
    size_t at = count++;
    for (; at > 0 && axes[at - 1].destination_stride < axis.destination_stride; --at) {
      axes[at] = axes[at - 1];
    }
    axes[at] = axis;
  }
  if (count == 0) {
    axes[0] = {1, source_bytes, destination_bytes};
    return {axes.data(), 1};
  }
  size_t merged = 0;
  for (size_t a = 1; a < count; ++a) {
    Axis& outer = axes[merged];
    const Axis& inner = axes[a];
    if (outer.source_stride == inner.source_stride * inner.extent &&
        outer.destination_stride == inner.destination_stride * inner.extent) {
      outer = {outer.extent * inner.extent, inner.source_stride, inner.destination_stride};
    } else {
      axes[++merged] = inner;
    }
  }
  count = merged + 1;
  if (axes[merged].destination_stride != destination_bytes) {
    axes[count++] = {1, source_bytes, destination_bytes};
  }
  return {axes.data(), count};
}

}  // namespace waybill
