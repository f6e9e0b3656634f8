// SPDX-License-Identifier: Apache-2.0

// Manifests: what one rank holds.
#include <optional>

#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

using Numbers = std::vector<int64_t>;

waybill_quantisation_t Named(const std::string& name) {
  waybill_quantisation_t quantisation = WAYBILL_QUANTISATION_INIT;
  Call(waybill_quantisation_named, name.c_str(), &quantisation);
  return quantisation;
}

uint32_t AddTensor(const KeptManifest& self, const std::string& name, uint32_t dtype,
                   const Numbers& shape) {
  uint32_t index = 0;
  Call(waybill_manifest_add_tensor, self.get(), name.c_str(), dtype, shape.data(),
       static_cast<uint32_t>(shape.size()), &index);
  return index;
}

void AddShard(const KeptManifest& self, uint32_t tensor, uint32_t region, uint64_t offset_bytes,
              uint32_t dtype, uint32_t content, const std::string& quantisation,
              const Numbers& begin, const Numbers& end, const std::optional<Numbers>& strides) {
  waybill_shard_t shard = WAYBILL_SHARD_INIT;
  if (begin.size() != end.size() || (strides && strides->size() != begin.size())) {
    throw abi3::ValueError("begin, end and strides are of different lengths");
  }
  shard.tensor_index = tensor;
  shard.region_index = region;
  shard.offset_bytes = offset_bytes;
  shard.dtype = dtype;
  shard.content = content;
  waybill_quantisation_t scheme;
  if (content != WAYBILL_CONTENT_PLAIN) {
    scheme = Named(quantisation);
    shard.quantisation = &scheme;
  }
  shard.dimensions = static_cast<uint32_t>(begin.size());
  shard.begin = begin.data();
  shard.end = end.data();
  shard.strides = strides ? strides->data() : nullptr;
  Call(waybill_manifest_add_shard, self.get(), &shard, nullptr);
}

void AddPadding(const KeptManifest& self, uint32_t region, uint64_t offset_bytes,
                uint32_t element_bytes, const Numbers& extents,
                const std::optional<Numbers>& strides) {
  waybill_padding_t padding = WAYBILL_PADDING_INIT;
  if (strides && strides->size() != extents.size()) {
    throw abi3::ValueError("extents and strides are of different lengths");
  }
  padding.region_index = region;
  padding.offset_bytes = offset_bytes;
  padding.element_bytes = element_bytes;
  padding.dimensions = static_cast<uint32_t>(extents.size());
  padding.extents = extents.data();
  padding.strides = strides ? strides->data() : nullptr;
  Call(waybill_manifest_add_padding, self.get(), &padding, nullptr);
}

uint32_t AddRegion(const KeptManifest& self, const std::string& name, uint64_t size_bytes) {
  uint32_t index = 0;
  Call(waybill_manifest_add_region, self.get(), name.c_str(), size_bytes, &index);
  return index;
}

void AddAlias(const KeptManifest& self, const std::string& name, uint32_t tensor) {
  Call(waybill_manifest_add_alias, self.get(), name.c_str(), tensor, nullptr);
}

std::vector<uint64_t> RegionSizes(const KeptManifest& self) {
  std::vector<uint64_t> sizes(waybill_manifest_region_count(self.get()));
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    sizes[i] = waybill_manifest_region_size(self.get(), i);
  }
  return sizes;
}

std::unique_ptr<KeptManifest> Decode(const abi3::RawBytes& data) {
  return std::make_unique<KeptManifest>(
      Make<Manifest>(waybill_manifest_decode, data.bytes.data(), data.bytes.size()));
}

}  // namespace

void AddManifest(abi3::Module& module) {
  abi3::Class<KeptManifest>(module, "Manifest")
      .Init<[] {
        return std::make_unique<KeptManifest>(Make<Manifest>(waybill_manifest_create));
      }>()
      .Method<"add_region", &AddRegion, "name", "size_bytes">()
      .Method<"add_tensor", &AddTensor, "name", "dtype", "shape">()
      .Method<"add_shard", &AddShard, "tensor", "region", "offset_bytes", "dtype", "content",
              "quantisation", "begin", "end", "strides">()
      .Method<"add_padding", &AddPadding, "region", "offset_bytes", "element_bytes", "extents",
              "strides">()
      .Method<"add_alias", &AddAlias, "name", "tensor">()
      .Method<"region_sizes", &RegionSizes>()
      .Method<"encode",
              [](const KeptManifest& self) {
                return abi3::RawBytes{Bytes(waybill_manifest_encode, self.get())};
              }>()
      .StaticMethod<"decode", &Decode, "data">()
      .Method<"describe", [](const KeptManifest& self) {
        return Bytes(waybill_manifest_describe, self.get());
      }>();
}

}  // namespace waybill::python
