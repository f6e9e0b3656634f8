// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/manifest.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace waybill {

uint32_t Manifest::AddRegion(absl::string_view name, uint64_t size_bytes) {
  Holdings& holdings = holdings_.Mutable();
  holdings.region_names.Add(name);
  holdings.region_bytes.push_back(size_bytes);
  return region_count() - 1;
}

uint32_t Manifest::AddTensor(absl::string_view name, absl::Span<const int64_t> shape, Dtype dtype) {
  Tensors& tensors = tensors_.Mutable();
  tensors.names.Add(name);
  tensors.shapes.Add(shape);
  tensors.dtypes.push_back(dtype);
  return tensor_count() - 1;
}

uint32_t Manifest::AddShard(uint32_t tensor_index, const Format& format, const Box& box,
                            const Place& place) {
  Holdings& holdings = holdings_.Mutable();
  const auto known = std::find(holdings.formats.begin(), holdings.formats.end(), format);
  holdings.shard_formats.push_back(static_cast<uint32_t>(known - holdings.formats.begin()));
  if (known == holdings.formats.end()) holdings.formats.push_back(format);
  holdings.shard_tensors.push_back(tensor_index);
  holdings.shard_regions.push_back(place.region_index);
  holdings.shard_offsets.push_back(place.offset_bytes);
  holdings.shard_begins.Add(box.begins());
  holdings.shard_ends.Add(box.ends());
  holdings.shard_strides.Add(place.strides);
  if (!place.engine_order.empty()) {
    holdings.ordered_shards.push_back(shard_count() - 1);
    holdings.engine_orders.Add(place.engine_order);
  }
  return shard_count() - 1;
}

uint32_t Manifest::AddPadding(uint32_t element_bytes, absl::Span<const int64_t> extents,
                              const Place& place) {
  Holdings& holdings = holdings_.Mutable();
  holdings.padding_regions.push_back(place.region_index);
  holdings.padding_offsets.push_back(place.offset_bytes);
  holdings.padding_element_bytes.push_back(element_bytes);
  holdings.padding_extents.Add(extents);
  holdings.padding_strides.Add(place.strides);
  return padding_count() - 1;
}

uint32_t Manifest::AddAlias(absl::string_view name, uint32_t tensor_index) {
  Tensors& tensors = tensors_.Mutable();
  tensors.alias_names.Add(name);
  tensors.alias_tensors.push_back(tensor_index);
  return alias_count() - 1;
}

ShardView Manifest::shard(uint32_t i) const {
  const Holdings& holdings = *holdings_;
  const auto& ordered = holdings.ordered_shards;
  const auto order = std::lower_bound(ordered.begin(), ordered.end(), i);
  const bool is_ordered = order != ordered.end() && *order == i;
  return {.tensor_index = holdings.shard_tensors[i],
          .format = shard_format(i),
          .box = Box(holdings.shard_begins[i], holdings.shard_ends[i]),
          .place = {.region_index = holdings.shard_regions[i],
                    .offset_bytes = holdings.shard_offsets[i],
                    .strides = holdings.shard_strides[i],
                    .engine_order =
                        is_ordered
                            ? holdings.engine_orders[static_cast<uint32_t>(order - ordered.begin())]
                            : absl::string_view()}};
}

uint64_t Manifest::shard_bytes(uint32_t i) const {
  return static_cast<uint64_t>(
             Box(holdings_->shard_begins[i], holdings_->shard_ends[i]).element_count()) *
         ElementBytes(shard_format(i));
}

bool Manifest::AreAlike(uint32_t i, uint32_t j) const {
  const Holdings& holdings = *holdings_;
  return holdings.shard_formats[i] == holdings.shard_formats[j] &&
         holdings.shard_begins[i] == holdings.shard_begins[j] &&
         holdings.shard_ends[i] == holdings.shard_ends[j] &&
         holdings.shard_strides[i] == holdings.shard_strides[j];
}

size_t Manifest::HashOfShard(uint32_t i) const {
  // A few numbers of each of millions of shards: mixed by hand, which absl::Hash does slower.
  uint64_t hash = holdings_->shard_formats[i];
  for (const Numbers* numbers :
       {&holdings_->shard_begins, &holdings_->shard_ends, &holdings_->shard_strides}) {
    for (const int64_t number : (*numbers)[i]) {
      hash = (hash ^ static_cast<uint64_t>(number)) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 32;
    }
  }
  return hash;
}

size_t Manifest::HashOfHoldings() const {
  // Ranks that differ mostly do so in their first shard, their last one, or one in the middle.
  const uint32_t shards = shard_count();
  size_t hash = absl::HashOf(tensor_count(), shards, holdings_->region_bytes);
  for (const uint32_t i : {uint32_t{0}, shards / 2, shards - 1}) {
    if (shards > 0) hash = absl::HashOf(hash, shard_tensor(i), shard_offset(i), HashOfShard(i));
  }
  return hash;
}

bool Manifest::has_quantised() const {
  const auto& formats = holdings_->formats;
  return std::any_of(formats.begin(), formats.end(),
                     [](const Format& format) { return format.content != Content::kPlain; });
}

PaddingView Manifest::padding(uint32_t i) const {
  const Holdings& holdings = *holdings_;
  return {.element_bytes = holdings.padding_element_bytes[i],
          .extents = holdings.padding_extents[i],
          .place = {.region_index = holdings.padding_regions[i],
                    .offset_bytes = holdings.padding_offsets[i],
                    .strides = holdings.padding_strides[i]}};
}

Manifest Manifest::WithoutShards() const {
  Manifest empty;
  empty.host_ = host_;
  empty.rack_ = rack_;
  empty.nics_ = nics_;
  empty.tensors_ = tensors_;
  Holdings& holdings = empty.holdings_.Mutable();
  holdings.region_names = holdings_->region_names;
  holdings.region_bytes = holdings_->region_bytes;
  return empty;
}

uint64_t Manifest::total_bytes() const {
  uint64_t total = 0;
  for (uint32_t i = 0; i < shard_count(); ++i) total += shard_bytes(i);
  return total;
}

}  // namespace waybill
