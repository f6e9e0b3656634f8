// SPDX-License-Identifier: Apache-2.0

// The part of a model that a worker holds, as vLLM or SGLang loads it.
#ifndef WAYBILL_CORE_LAYOUT_WORKER_LAYOUT_H_
#define WAYBILL_CORE_LAYOUT_WORKER_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"
#include "core/layout/model_config.h"
#include "core/layout/parameters.h"
#include "core/layout/serving.h"
#include "core/layout/sharding.h"
#include "core/tensor/format.h"
#include "core/tensor/manifest.h"

namespace waybill {

// A region as the engine sees it: dense and row-major.
struct Parameter {
  std::string name;
  Format format;
  std::vector<int64_t> shape;
  uint32_t region_index = 0;
  uint64_t offset_bytes = 0;
};

struct WorkerLayout {
  Manifest manifest;
  std::vector<Parameter> parameters;  // In the engine's order.
};

// The engine's tables (families.h) say what is fused and stacked. The vocabulary is padded to a
// multiple of 64 before tp divides it; key/value heads are repeated where tp exceeds them; GPT-2's
// weights are transposed; sizes of experts in MXFP4 are rounded up for vLLM's kernel. A generic
// model keeps its tensors under their names, whole or (tp > 1) cut by rows as torch.chunk does.
//
// Everything lies in one region "weights", each parameter at a multiple of 256 bytes; gaps, what
// the vocabulary and experts were padded with, and numbers that only the engine has are declared
// padding, so Holes::kRefused is met.
//
// The scales of a quantised parameter follow it, under the name that ScaleName() returns. Each
// fused part has a grid of its own, one below the other. The scales of a layer's experts follow the
// last parameter of experts.
//
// `parameters` are those of FindParameters() for the sharding's engine.
//
// kInvalidArgument: as FindParameters() and QuantisationOf(); numbers of the sharding that do not
// fit the model (both are named, and what would be accepted); a dtype that a tensor cannot be
// converted to; a generic model to be quantised, because its layers' weights are not known.
absl::StatusOr<WorkerLayout> MakeWorkerLayout(absl::Span<const ModelParameter> parameters,
                                              const ModelConfig& config,
                                              const WorkerSharding& sharding, uint32_t rank,
                                              const Serving& serving = {});

// The same for one rank alone: finds the parameters first.
absl::StatusOr<WorkerLayout> MakeWorkerLayout(absl::Span<const CheckpointTensor> tensors,
                                              const ModelConfig& config,
                                              const WorkerSharding& sharding, uint32_t rank,
                                              const Serving& serving = {});

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_WORKER_LAYOUT_H_
