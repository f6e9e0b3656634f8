// SPDX-License-Identifier: Apache-2.0

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

// Reads how to serve the model. `format` is a name of QuantisationNames(); empty means what
// quantization_config in config.json says, or as stored without it. `dtype` is a name or empty.
//
// kInvalidArgument: no such name; a quantization_config that is not understood; names of both kinds
// that contradict each other.
absl::StatusOr<Serving> ParseServing(absl::string_view format, absl::string_view dtype,
                                     const ModelConfig& config);

// Returns how a parameter is quantised, or nullopt if it is not. If the ranks' cuts or the edges of
// fused parts lie within blocks, scales are stored on a finer grid, as in vLLM: the grid of a
// rank's parameter begins at its first row. A layer's first expert decides for all of them.
//
// kInvalidArgument: a parameter that is transposed; cuts that no grid of scales fits; a fused
// parameter of which only a part is to be converted.
absl::StatusOr<std::optional<Quantisation>> QuantisationOf(const ModelParameter& parameter,
                                                           const Serving& serving,
                                                           const ModelConfig& config,
                                                           const WorkerSharding& sharding);

// Returns the name that engines give a parameter's scales, such as "x.down_proj.weight_scale_inv"
// for "x.down_proj.weight". The scales of blocks are "inverse" by name only.
std::string ScaleName(absl::string_view parameter, const Quantisation& quantisation);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_SERVING_H_
