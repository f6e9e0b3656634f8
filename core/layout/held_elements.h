// SPDX-License-Identifier: Apache-2.0

// For tests: models without data, and what a rank holds of them, element by element.
#ifndef WAYBILL_CORE_LAYOUT_HELD_ELEMENTS_H_
#define WAYBILL_CORE_LAYOUT_HELD_ELEMENTS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/layout/checkpoint_tensor.h"
#include "core/layout/model_config.h"
#include "core/layout/parameters.h"
#include "core/layout/synthetic.h"
#include "core/layout/worker_layout.h"
#include "core/tensor/manifest.h"

namespace waybill {

struct TestModel {
  ModelConfig config;
  std::vector<CheckpointTensor> tensors;
};

// Returns the model of a config.json, with floats of that type.
inline TestModel MakeModel(absl::string_view config_json, Dtype dtype = Dtype::kBf16) {
  TestModel model = {*ParseModelConfig(config_json), {}};
  model.tensors = RequiredTensors(model.config, dtype);
  return model;
}

inline TestModel MakeNamedModel(absl::string_view name, int64_t layers) {
  const SyntheticModel synthetic = *MakeSyntheticModel(name, layers);
  return {*ParseModelConfig(synthetic.config_json), synthetic.tensors};
}

inline const Parameter& FindParameter(const WorkerLayout& layout, absl::string_view name) {
  for (const Parameter& parameter : layout.parameters) {
    if (parameter.name == name) return parameter;
  }
  ADD_FAILURE() << "there is no parameter " << name;
  return layout.parameters[0];
}

// Calls visit(tensor_index, element, offset_bytes) for each element that a rank holds: its number
// within the tensor and its place in the region. By the definition of Place, one at a time.
template <typename Visit>
void ForEachElement(const Manifest& manifest, Visit visit) {
  for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
    const ShardView shard = manifest.shard(i);
    const auto shape = manifest.tensor_shape(shard.tensor_index);
    for (int64_t n = 0; n < shard.box.element_count(); ++n) {
      int64_t rest = n;
      int64_t element = 0;
      int64_t scale = 1;
      int64_t place = 0;
      for (int d = shard.box.dimensions() - 1; d >= 0; --d) {
        const auto at_d = static_cast<size_t>(d);
        const int64_t index = rest % shard.box.extent(d);
        rest /= shard.box.extent(d);
        element += (shard.box.begin(d) + index) * scale;
        scale *= shape[at_d];
        place += index * shard.place.strides[at_d];
      }
      visit(shard.tensor_index, element,
            shard.place.offset_bytes + static_cast<uint64_t>(place) * ElementBytes(shard.format));
    }
  }
}

// The place in its region of each element that a rank holds, by the tensor's name.
using HeldElements = std::map<std::string, std::map<int64_t, uint64_t>>;

// Expects each element once, and in a place of its own.
inline HeldElements FindHeldElements(const Manifest& manifest) {
  HeldElements held;
  std::set<uint64_t> places;
  ForEachElement(manifest, [&](uint32_t tensor, int64_t element, uint64_t offset_bytes) {
    const std::string name(manifest.tensor_name(tensor));
    EXPECT_TRUE(held[name].emplace(element, offset_bytes).second) << name << " " << element;
    EXPECT_TRUE(places.insert(offset_bytes).second) << name << " " << element;
  });
  return held;
}

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_HELD_ELEMENTS_H_
