// The part of a model that a trainer holds.
#ifndef WAYBILL_CORE_LAYOUT_TRAINER_LAYOUT_H_
#define WAYBILL_CORE_LAYOUT_TRAINER_LAYOUT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"
#include "core/layout/model_config.h"
#include "core/layout/sharding.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Names, shapes and dtypes are the checkpoint's. Layers are dealt to pp stages in order, the
// embedding to the first stage, the last norm and the head to the last; tp cuts as Megatron does;
// of what it leaves, fsdp cuts dimension 0 as torch.chunk does, so a rank may hold nothing of a
// tensor; dp repeats. A tied head is an alias where the embedding is. A generic model is cut by
// rows only, by tp and fsdp alike.
//
// Everything lies in one region "weights": row-major, each tensor at a multiple of 64 bytes.
//
// kInvalidArgument: tp does not divide what it has to; a tensor is missing, has another shape than
// config.json says, or is none of its family's; rank or pp too large. Names the tensor.
absl::StatusOr<Manifest> MakeTrainerManifest(absl::Span<const CheckpointTensor> tensors,
                                             const ModelConfig& config,
                                             const TrainerSharding& sharding, uint32_t rank);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_TRAINER_LAYOUT_H_
