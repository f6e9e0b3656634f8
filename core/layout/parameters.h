// SPDX-License-Identifier: Apache-2.0

// A family's rules applied to a checkpoint's tensors: what trainers and workers then cut.
#ifndef WAYBILL_CORE_LAYOUT_PARAMETERS_H_
#define WAYBILL_CORE_LAYOUT_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"
#include "core/layout/families.h"
#include "core/layout/model_config.h"
#include "core/layout/sharding.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"

namespace waybill {

struct ModelTensor {
  const CheckpointTensor* tensor = nullptr;  // Null for a number that only an engine has.
  const TensorRule* rule = nullptr;
  int64_t layer = -1;   // -1 outside the layers.
  int64_t expert = -1;  // -1 if the tensor is not one of a single expert.
};

// Returns the tensors in the order of the rules, layer by layer and expert by expert, without a
// tied head. The tensors of a generic model have rules that cut rows. The result points into
// `tensors`.
//
// Finding is the slow part of making a manifest: find once, and cut for all ranks.
//
// kInvalidArgument: a tensor is missing, has another shape than the configuration says, or is none
// that the family knows.
absl::StatusOr<std::vector<ModelTensor>> FindTensors(absl::Span<const CheckpointTensor> tensors,
                                                     const ModelConfig& config);

// Returns the tensors that a model of that configuration must have, without data and with floats of
// type `dtype`. Optional tensors are left out. A generic model has none.
std::vector<CheckpointTensor> RequiredTensors(const ModelConfig& config, Dtype dtype);

// A parameter of a worker.
struct ModelParameter {
  std::string name;
  const TensorRule* rule = nullptr;  // The rule of the first part.
  int64_t layer = -1;
  // The parts in the parameter's order. A parameter that stacks experts has the parts of each
  // expert of the model in turn. A number that only the engine has is without parts.
  std::vector<const ModelTensor*> parts;
};

// Returns the parameters in the engine's order. They point into `tensors`.
//
// kInvalidArgument: a tensor is missing that the engine fuses with one that is there.
absl::StatusOr<std::vector<ModelParameter>> FindParameters(absl::Span<const ModelTensor> tensors,
                                                           const ModelConfig& config,
                                                           Engine engine);

enum class VocabularyRows : uint8_t {
  kPadded,    // Workers: to a multiple of 64, then equal parts.
  kChunked,   // FSDP: as torch.chunk does.
  kMegatron,  // To a multiple of 128 * tp, then equal parts.
};

// The range of the cut axis that a share has, counted within a section of the tensor.
struct CutRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t padding = 0;  // The number of indices behind `end` that no element fills.

  int64_t extent() const { return end - begin; }
};

// Returns the range that a share has. `word` is how a sharding calls the share's count, for errors.
//
// kInvalidArgument: the share's count does not divide what it has to. Names the tensor and both
// numbers, and says what would be accepted.
absl::StatusOr<CutRange> CutTensor(const ModelTensor& tensor, const ModelConfig& config,
                                   Share share, VocabularyRows vocabulary_rows,
                                   absl::string_view word);

// Returns the experts that a share has.
//
// kInvalidArgument: the share's count does not divide the experts, and `uneven` is false; says what
// would be accepted.
absl::StatusOr<ExpertRange> CutExperts(const ModelConfig& config, Share share, bool uneven);

// Returns part `index` of `count` of [0, extent), as torch.chunk cuts it.
CutRange TorchChunk(int64_t extent, Share share);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_PARAMETERS_H_
