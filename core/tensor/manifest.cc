#include "core/tensor/manifest.h"

#include <algorithm>

namespace waybill {

uint32_t Manifest::AddRegion(absl::string_view name, uint64_t size_bytes) {
  region_names_.Add(name);
  region_bytes_.push_back(size_bytes);
  return region_count() - 1;
}

uint32_t Manifest::AddTensor(absl::string_view name, absl::Span<const int64_t> shape, Dtype dtype) {
  tensor_names_.Add(name);
  tensor_shapes_.Add(shape);
  tensor_dtypes_.push_back(dtype);
  return tensor_count() - 1;
}

uint32_t Manifest::AddShard(uint32_t tensor_index, const Format& format, const Box& box,
                            const Place& place) {
  const auto known = std::find(formats_.begin(), formats_.end(), format);
  shard_formats_.push_back(static_cast<uint32_t>(known - formats_.begin()));
  if (known == formats_.end()) formats_.push_back(format);
  shard_tensors_.push_back(tensor_index);
  shard_regions_.push_back(place.region_index);
  shard_offsets_.push_back(place.offset_bytes);
  shard_begins_.Add(box.begins());
  shard_ends_.Add(box.ends());
  shard_strides_.Add(place.strides);
  if (!place.engine_order.empty()) {
    ordered_shards_.push_back(shard_count() - 1);
    engine_orders_.Add(place.engine_order);
  }
  return shard_count() - 1;
}

uint32_t Manifest::AddPadding(uint32_t element_bytes, absl::Span<const int64_t> extents,
                              const Place& place) {
  padding_regions_.push_back(place.region_index);
  padding_offsets_.push_back(place.offset_bytes);
  padding_element_bytes_.push_back(element_bytes);
  padding_extents_.Add(extents);
  padding_strides_.Add(place.strides);
  return padding_count() - 1;
}

uint32_t Manifest::AddAlias(absl::string_view name, uint32_t tensor_index) {
  alias_names_.Add(name);
  alias_tensors_.push_back(tensor_index);
  return alias_count() - 1;
}

ShardView Manifest::shard(uint32_t i) const {
  const auto ordered = std::lower_bound(ordered_shards_.begin(), ordered_shards_.end(), i);
  const bool is_ordered = ordered != ordered_shards_.end() && *ordered == i;
  return {
      .tensor_index = shard_tensors_[i],
      .format = formats_[shard_formats_[i]],
      .box = Box(shard_begins_[i], shard_ends_[i]),
      .place = {.region_index = shard_regions_[i],
                .offset_bytes = shard_offsets_[i],
                .strides = shard_strides_[i],
                .engine_order =
                    is_ordered
                        ? engine_orders_[static_cast<uint32_t>(ordered - ordered_shards_.begin())]
                        : absl::string_view()}};
}

uint64_t Manifest::shard_bytes(uint32_t i) const {
  return static_cast<uint64_t>(Box(shard_begins_[i], shard_ends_[i]).element_count()) *
         ElementBytes(formats_[shard_formats_[i]]);
}

bool Manifest::has_quantised() const {
  return std::any_of(formats_.begin(), formats_.end(),
                     [](const Format& format) { return format.content != Content::kPlain; });
}

PaddingView Manifest::padding(uint32_t i) const {
  return {.element_bytes = padding_element_bytes_[i],
          .extents = padding_extents_[i],
          .place = {.region_index = padding_regions_[i],
                    .offset_bytes = padding_offsets_[i],
                    .strides = padding_strides_[i]}};
}

uint64_t Manifest::total_bytes() const {
  uint64_t total = 0;
  for (uint32_t i = 0; i < shard_count(); ++i) total += shard_bytes(i);
  return total;
}

}  // namespace waybill
