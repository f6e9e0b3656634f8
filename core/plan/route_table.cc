// SPDX-License-Identifier: Apache-2.0

#include "core/plan/route_table.h"

namespace waybill {

int64_t RouteShape::element_count() const {
  int64_t count = 1;
  for (const Axis& axis : axes) count *= axis.extent;
  return count;
}

uint64_t RouteShape::size_bytes() const {
  return static_cast<uint64_t>(element_count()) * destination_element_bytes;
}

uint64_t RouteShape::source_span_bytes() const {
  uint64_t span = source_element_bytes;
  for (const Axis& axis : axes)
    span += static_cast<uint64_t>((axis.extent - 1) * axis.source_stride);
  return span;
}

uint64_t RouteShape::destination_span_bytes() const {
  uint64_t span = destination_element_bytes;
  for (const Axis& axis : axes) {
    span += static_cast<uint64_t>((axis.extent - 1) * axis.destination_stride);
  }
  return span;
}

uint64_t RouteShape::destination_run_bytes() const {
  int64_t run = static_cast<int64_t>(destination_element_bytes);
  for (size_t a = axes.size(); a-- > 0 && axes[a].destination_stride == run;) {
    run *= axes[a].extent;
  }
  return static_cast<uint64_t>(run);
}

RouteShape RouteTable::shape(uint32_t i) const {
  const uint32_t begin = i == 0 ? 0 : axis_ends_[i - 1];
  return {.transform = transforms_[i],
          .source_element_bytes = source_element_bytes_[i],
          .destination_element_bytes = destination_element_bytes_[i],
          .axes = absl::MakeConstSpan(axes_).subspan(begin, axis_ends_[i] - begin)};
}

Box RouteTable::box(uint32_t i) const {
  const uint32_t begin = i == 0 ? 0 : bound_ends_[i - 1];
  const uint32_t dimensions = (bound_ends_[i] - begin) / 2;
  const auto bounds = absl::MakeConstSpan(bounds_);
  return {bounds.subspan(begin, dimensions), bounds.subspan(begin + dimensions, dimensions)};
}

RouteView RouteTable::operator[](uint32_t i) const {
  return {.sender = senders_[i],
          .receiver = receivers_[i],
          .source_shard = source_shards_[i],
          .destination_shard = destination_shards_[i],
          .source_region = source_regions_[i],
          .destination_region = destination_regions_[i],
          .source_offset_bytes = source_offsets_[i],
          .destination_offset_bytes = destination_offsets_[i],
          .scale_table = scale_tables_[i],
          .witness = witnesses_[i],
          .box = box(i),
          .shape = shape(i)};
}

void RouteTable::Add(const RouteView& route) {
  senders_.push_back(route.sender);
  receivers_.push_back(route.receiver);
  source_shards_.push_back(route.source_shard);
  destination_shards_.push_back(route.destination_shard);
  source_regions_.push_back(route.source_region);
  destination_regions_.push_back(route.destination_region);
  source_offsets_.push_back(route.source_offset_bytes);
  destination_offsets_.push_back(route.destination_offset_bytes);
  scale_tables_.push_back(route.scale_table);
  witnesses_.push_back(route.witness);
  transforms_.push_back(route.shape.transform);
  source_element_bytes_.push_back(static_cast<uint8_t>(route.shape.source_element_bytes));
  destination_element_bytes_.push_back(static_cast<uint8_t>(route.shape.destination_element_bytes));
  axes_.insert(axes_.end(), route.shape.axes.begin(), route.shape.axes.end());
  axis_ends_.push_back(static_cast<uint32_t>(axes_.size()));
  bounds_.insert(bounds_.end(), route.box.begins().begin(), route.box.begins().end());
  bounds_.insert(bounds_.end(), route.box.ends().begin(), route.box.ends().end());
  bound_ends_.push_back(static_cast<uint32_t>(bounds_.size()));
}

void RouteTable::Reserve(uint32_t routes) {
  for (auto* column :
       {&senders_, &receivers_, &source_shards_, &destination_shards_, &source_regions_,
        &destination_regions_, &scale_tables_, &axis_ends_, &bound_ends_}) {
    column->reserve(routes);
  }
  source_offsets_.reserve(routes);
  destination_offsets_.reserve(routes);
  transforms_.reserve(routes);
  source_element_bytes_.reserve(routes);
  destination_element_bytes_.reserve(routes);
}

uint64_t RouteTable::total_bytes() const {
  uint64_t total = 0;
  for (uint32_t i = 0; i < size(); ++i) total += written_bytes(i);
  return total;
}

}  // namespace waybill
