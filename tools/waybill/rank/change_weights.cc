// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/rank/change_weights.h"

#include <cstring>

#include "tools/check/change.h"

namespace waybill {
namespace {

// A run of neighbouring elements, the first of which has that number in the whole tensor.
template <typename Element>
void ChangeRun(std::byte* at, int64_t count, uint64_t number, check::ChangeKey from,
               check::ChangeKey to) {
  constexpr auto kMask = static_cast<Element>(check::BitsThatChange(sizeof(Element)));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t element = number + static_cast<uint64_t>(i);
    Element value;
    std::memcpy(&value, at + i * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
    value ^=
        static_cast<Element>(check::Change(from, element) ^ check::Change(to, element)) & kMask;
    std::memcpy(at + i * static_cast<int64_t>(sizeof(Element)), &value, sizeof(Element));
  }
}

}  // namespace

void ChangeWeights(const Manifest& manifest, absl::Span<std::byte> weights,
                   const check::WeightVersion& from, const check::WeightVersion& to) {
  for (uint32_t s = 0; s < manifest.shard_count(); ++s) {
    const ShardView shard = manifest.shard(s);
    if (shard.box.empty()) continue;
    const auto shape = manifest.tensor_shape(shard.tensor_index);
    const check::ChangeKey from_key = check::KeyOf(from, manifest.tensor_name(shard.tensor_index));
    const check::ChangeKey to_key = check::KeyOf(to, manifest.tensor_name(shard.tensor_index));
    const int last = shard.box.dimensions() - 1;
    const int64_t run = last < 0 ? 1 : shard.box.extent(last);
    // Row by row of the shard; shards of trainers are row-major.
    for (int64_t row = 0; row < shard.box.element_count() / run; ++row) {
      int64_t rest = row, number = last < 0 ? 0 : shard.box.begin(last), place = 0, scale = 1;
      for (int d = last; d >= 0; --d) {
        if (d < last) {
          const int64_t at = rest % shard.box.extent(d);
          rest /= shard.box.extent(d);
          number += (shard.box.begin(d) + at) * scale;
          place += at * shard.place.strides[static_cast<size_t>(d)];
        }
        scale *= shape[static_cast<size_t>(d)];
      }
      const uint32_t bytes = ElementBytes(shard.format);
      std::byte* at = weights.data() + shard.place.offset_bytes + place * bytes;
      const auto first = static_cast<uint64_t>(number);
      if (bytes == 1) ChangeRun<uint8_t>(at, run, first, from_key, to_key);
      if (bytes == 2) ChangeRun<uint16_t>(at, run, first, from_key, to_key);
      if (bytes == 4) ChangeRun<uint32_t>(at, run, first, from_key, to_key);
      if (bytes == 8) ChangeRun<uint64_t>(at, run, first, from_key, to_key);
    }
  }
}

}  // namespace waybill
