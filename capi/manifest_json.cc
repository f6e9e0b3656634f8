// SPDX-License-Identifier: Apache-2.0

#include <nlohmann/json.hpp>

#include "capi/manifest.h"

namespace waybill::capi {
namespace {

nlohmann::json Numbers(absl::Span<const int64_t> numbers) {
  return nlohmann::json(std::vector<int64_t>(numbers.begin(), numbers.end()));
}

std::string Text(absl::string_view text) { return std::string(text); }

nlohmann::json ToJson(const Place& place) {
  nlohmann::json json = {{"region", place.region_index},
                         {"offset_bytes", place.offset_bytes},
                         {"strides", Numbers(place.strides)}};
  if (!place.engine_order.empty()) json["engine_order"] = Text(place.engine_order);
  return json;
}

nlohmann::json Tensors(const Manifest& manifest) {
  nlohmann::json tensors = nlohmann::json::array();
  for (uint32_t i = 0; i < manifest.tensor_count(); ++i) {
    tensors.push_back({{"name", Text(manifest.tensor_name(i))},
                       {"dtype", Text(Name(manifest.tensor_dtype(i)))},
                       {"shape", Numbers(manifest.tensor_shape(i))}});
  }
  return tensors;
}

}  // namespace

std::string TensorsToJson(const Manifest& manifest) {
  return nlohmann::json({{"tensors", Tensors(manifest)}}).dump();
}

std::string ManifestToJson(const Manifest& manifest) {
  nlohmann::json json = {{"regions", nlohmann::json::array()}, {"tensors", Tensors(manifest)},
                         {"shards", nlohmann::json::array()},  {"padding", nlohmann::json::array()},
                         {"aliases", nlohmann::json::array()}, {"bytes", manifest.total_bytes()}};
  for (uint32_t i = 0; i < manifest.region_count(); ++i) {
    json["regions"].push_back(
        {{"name", Text(manifest.region_name(i))}, {"bytes", manifest.region_bytes(i)}});
  }
  for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
    const ShardView shard = manifest.shard(i);
    json["shards"].push_back({{"tensor", shard.tensor_index},
                              {"dtype", Text(Name(shard.format.dtype))},
                              {"content", static_cast<uint32_t>(shard.format.content)},
                              {"format", ToString(shard.format)},
                              {"begin", Numbers(shard.box.begins())},
                              {"end", Numbers(shard.box.ends())},
                              {"place", ToJson(shard.place)}});
  }
  for (uint32_t i = 0; i < manifest.padding_count(); ++i) {
    const PaddingView padding = manifest.padding(i);
    json["padding"].push_back({{"element_bytes", padding.element_bytes},
                               {"extents", Numbers(padding.extents)},
                               {"place", ToJson(padding.place)}});
  }
  for (uint32_t i = 0; i < manifest.alias_count(); ++i) {
    json["aliases"].push_back(
        {{"name", Text(manifest.alias_name(i))}, {"tensor", manifest.alias_tensor(i)}});
  }
  return json.dump();
}

}  // namespace waybill::capi
