// A family's table met with a checkpoint's tensors: what trainers and workers then cut.
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
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"

namespace waybill {

struct ParameterPart {
  const CheckpointTensor* tensor = nullptr;
  Box box;  // All of the tensor, or a section of it, in the checkpoint's axes.
  Cut cut = Cut::kWhole;
  int cut_axis = 0;        // An axis of the checkpoint's tensor; unused for kWhole.
  int64_t head_count = 0;  // Used by cuts along heads.
};

struct ModelParameter {
  std::string name;  // The worker's.
  Where where = Where::kLayer;
  int64_t layer = 0;        // For Where::kLayer.
  bool transposed = false;  // The worker has the axes in the other order.
  std::vector<ParameterPart> parts;
};

// Returns the parameters in the engine's order, without a tied head. In a generic model each tensor
// is a parameter. The parts point into `tensors`.
//
// kInvalidArgument: a tensor is missing, has another shape than the configuration says, or is none
// that the family knows.
absl::StatusOr<std::vector<ModelParameter>> FindParameters(
    absl::Span<const CheckpointTensor> tensors, const ModelConfig& config);

// The same rules without a checkpoint: what a model of that configuration has to hold. Without data
// and without what is optional; nothing for a generic model.
std::vector<CheckpointTensor> RequiredTensors(const ModelConfig& config, Dtype dtype);

enum class VocabularyRows : uint8_t {
  kPadded,   // Workers: to a multiple of 64, then equal parts.
  kChunked,  // Trainers: as torch.chunk does.
};

// The range of the cut axis, counted from the begin of the part's box, that one of `tp` ranks has.
struct CutRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t padding = 0;  // The number of rows behind `end` that no element fills.

  int64_t extent() const { return end - begin; }
};

// kInvalidArgument: `tp` does not divide what it has to; names the tensor and both numbers.
absl::StatusOr<CutRange> CutPart(const ParameterPart& part, uint32_t tp, uint32_t tp_rank,
                                 VocabularyRows vocabulary_rows);

// Part `index` of `count` of [0, extent) as torch.chunk cuts it.
CutRange TorchChunk(int64_t extent, uint32_t count, uint32_t index);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_PARAMETERS_H_
