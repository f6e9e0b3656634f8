// SPDX-License-Identifier: Apache-2.0

// Reads what config.json says about the shapes of a model's tensors.
#ifndef WAYBILL_CORE_LAYOUT_MODEL_CONFIG_H_
#define WAYBILL_CORE_LAYOUT_MODEL_CONFIG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/layout/families.h"
#include "core/tensor/quantisation.h"

namespace waybill {

struct ModelConfig {
  // Null for a generic model, whose tensors are held whole or cut by rows.
  const Family* family = nullptr;
  std::string generic_reason;  // Why the model is generic.

  uint32_t blocks = 0;  // Bits of Block: what the model is made of.
  std::array<int64_t, kExtentCount> extents{};
  int64_t layers = 0;
  int64_t draft_layers = 0;  // Layers behind the others that predict further tokens. Not served.
  int64_t kv_heads = 0;
  bool tied_head = false;

  // Which layers have experts. Layer l has them if l >= first_sparse, (l + sparse_offset) is a
  // multiple of sparse_step, and l is not one of dense_layers.
  int64_t first_sparse = 0;
  int64_t sparse_step = 1;
  int64_t sparse_offset = 0;
  std::vector<int64_t> dense_layers;  // Sorted.

  // From quantization_config: how the model is served, and which modules are not quantised.
  std::optional<Quantisation> quantisation;
  std::vector<std::string> not_quantised;
  // Why quantization_config is not understood. Empty if it is, or if there is none.
  std::string quantisation_problem;

  int64_t extent(Extent e) const { return extents[static_cast<size_t>(e)]; }
  // Returns the number of experts of a layer. 0 if there are none.
  int64_t experts() const { return extent(Extent::kExpertCount); }
  bool has(Block block) const { return (blocks & Bit(block)) != 0; }
  bool IsSparse(int64_t layer) const;
  // Returns true if the layer has the rule's tensor.
  bool HasInLayer(const TensorRule& rule, int64_t layer) const;
  // Returns true if the rule's tensor may be missing.
  bool IsOptional(const TensorRule& rule) const;

  absl::string_view family_name() const { return family == nullptr ? "generic" : family->name; }

  static ModelConfig Generic(absl::string_view reason);
};

// An architecture without a family of ours is generic, and the reason says which there are.
// kInvalidArgument:
// not JSON, or a number that its family needs is missing or not one; names the key.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_MODEL_CONFIG_H_
