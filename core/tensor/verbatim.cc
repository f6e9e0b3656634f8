// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/verbatim.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/tensor/quantisation.h"

namespace waybill {

namespace {

// Formats of one name hold the same bytes for the same elements.
std::string FullName(const Format& format) {
  const Quantisation& q = format.quantisation;
  return absl::StrCat(ToString(format), ", of ", Name(q.from), ", rounding ",
                      static_cast<int>(q.rounding), ", division ", static_cast<int>(q.division),
                      q.stores_reciprocal ? ", reciprocals" : "", ", epsilon ", q.epsilon,
                      ", a scale for ", q.scale_rows, "x", q.scale_columns);
}

}  // namespace

Manifest Verbatim(const Manifest& manifest) {
  Manifest verbatim;
  verbatim.set_host(manifest.host());
  verbatim.set_rack(manifest.rack());
  verbatim.nics() = manifest.nics();
  for (uint32_t r = 0; r < manifest.region_count(); ++r) {
    verbatim.AddRegion(manifest.region_name(r), manifest.region_bytes(r));
  }
  for (uint32_t t = 0; t < manifest.tensor_count(); ++t) {
    verbatim.AddTensor(manifest.tensor_name(t), manifest.tensor_shape(t), manifest.tensor_dtype(t));
  }
  absl::flat_hash_map<std::pair<uint32_t, std::string>, uint32_t> converted;
  for (uint32_t s = 0; s < manifest.shard_count(); ++s) {
    const ShardView shard = manifest.shard(s);
    const Format plain{shard.format.dtype};
    uint32_t tensor = shard.tensor_index;
    if (shard.format.content != Content::kPlain) {
      const std::string format = FullName(shard.format);
      const auto [known, is_new] = converted.try_emplace(std::pair(tensor, format));
      if (is_new) {
        const auto shape = manifest.tensor_shape(tensor);
        known->second = verbatim.AddTensor(
            absl::StrCat(manifest.tensor_name(tensor), " as ", format),
            shard.format.content == Content::kScales
                ? GridShape(shape, ScaleExtents(shard.format.quantisation, shape))
                : std::vector<int64_t>(shape.begin(), shape.end()),
            shard.format.dtype);
      }
      tensor = known->second;
    }
    verbatim.AddShard(tensor, plain, shard.box, shard.place);
  }
  return verbatim;
}

}  // namespace waybill
