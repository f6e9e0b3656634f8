// Reads what config.json says about the shapes of a model's tensors.
#ifndef WAYBILL_CORE_LAYOUT_MODEL_CONFIG_H_
#define WAYBILL_CORE_LAYOUT_MODEL_CONFIG_H_

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

  int64_t hidden = 0;
  int64_t inner = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocabulary = 0;
  int64_t positions = 0;  // 0 if positions are not learnt.
  bool tied_head = false;

  // From quantization_config: how the model is served, and which modules are not quantised.
  std::optional<Quantisation> quantisation;
  std::vector<std::string> not_quantised;
  // Why quantization_config is not understood. Empty if it is, or if there is none.
  std::string quantisation_problem;

  absl::string_view family_name() const { return family == nullptr ? "generic" : family->name; }

  static ModelConfig Generic(absl::string_view reason);
};

// An architecture without a family of ours is generic, and the reason says so. kInvalidArgument:
// not JSON, or a number that its family needs is missing or not one; names the key.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_MODEL_CONFIG_H_
