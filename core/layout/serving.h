// How an engine serves a model: which parameters are quantised, and how.
#ifndef WAYBILL_CORE_LAYOUT_SERVING_H_
#define WAYBILL_CORE_LAYOUT_SERVING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/layout/model_config.h"
#include "core/layout/parameters.h"
#include "core/layout/sharding.h"
#include "core/tensor/dtype.h"
#include "core/tensor/quantisation.h"

namespace waybill {

struct Serving {
  std::optional<Dtype> dtype;  // The type of floating-point parameters. Unset: as stored.
  // How the layers' matrices are quantised. Embeddings, norms, biases, the router and the head stay
  // as they are, and what config.json says is not to be converted.
  std::optional<Quantisation> quantisation;
};

// `format`: a name of QuantisationNames(), or empty: what config.json's quantization_config says,
// else as stored. `dtype`: a name, or empty.
//
// kInvalidArgument: no such name; a quantization_config that is not understood; names of both kinds
// that contradict each other.
absl::StatusOr<Serving> ParseServing(absl::string_view format, absl::string_view dtype,
                                     const ModelConfig& config);

// How a parameter is quantised; nothing where it is not. Where the ranks' cuts lie within blocks,
// or parts are fused within them, scales are stored finer, as vLLM does: the grid of a rank's
// parameter begins at its first row. Whether experts are converted is asked of a layer's first
// expert.
//
// kInvalidArgument: a parameter that is transposed; cuts that no grid of scales fits; a fused
// parameter of which only a part is to be converted.
absl::StatusOr<std::optional<Quantisation>> QuantisationOf(const ModelParameter& parameter,
                                                           const Serving& serving,
                                                           const ModelConfig& config,
                                                           const WorkerSharding& sharding);

// "model.layers.0.mlp.down_proj.weight_scale_inv" of "model.layers.0.mlp.down_proj.weight", as
// engines call it: blocks' scales are "inverse" by name only.
std::string ScaleName(absl::string_view parameter, const Quantisation& quantisation);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_SERVING_H_
