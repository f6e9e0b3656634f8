// SPDX-License-Identifier: Apache-2.0

// The part of a model that a trainer holds.
#ifndef WAYBILL_CORE_LAYOUT_TRAINER_LAYOUT_H_
#define WAYBILL_CORE_LAYOUT_TRAINER_LAYOUT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"
#include "core/layout/model_config.h"
#include "core/layout/parameters.h"
#include "core/layout/sharding.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Names, shapes and dtypes are the checkpoint's. Layers are dealt to pp stages in order, as
// `stages` says or about equally; the embedding to the first stage, the last norm and the head to
// the last. With vpp, each stage gets its layers in so many equal chunks, one in each round. tp
// cuts as Megatron does. fsdp cuts dimension 0 of what tp leaves as torch.chunk does, so a rank may
// hold nothing of a tensor. A tied head is an alias where the embedding is. A generic model is
// cut by rows only, by tp and fsdp alike.
//
// FSDP1 concatenates the tensors of a layer, and those outside the layers, and gives each rank an
// equal range of that array; ranges begin and end within rows. The order is that of FindTensors(),
// with each bias behind its weight. With `original_params`, each tensor of an array begins at a
// multiple of 16 bytes. Tensors of another dtype form an array of their own.
//
// Everything lies in one region "weights": row-major, each tensor, Megatron's fused qkv and FSDP1's
// flat range at a multiple of 64 bytes.
//
// `tensors` are those of FindTensors().
//
// kInvalidArgument: numbers of the sharding that do not fit the model (both are named, and what
// would be accepted); rank too large.
absl::StatusOr<Manifest> MakeTrainerManifest(absl::Span<const ModelTensor> tensors,
                                             const ModelConfig& config,
                                             const TrainerSharding& sharding, uint32_t rank);

// The same for one rank alone: finds the tensors first.
//
// kInvalidArgument: also as FindTensors().
absl::StatusOr<Manifest> MakeTrainerManifest(absl::Span<const CheckpointTensor> tensors,
                                             const ModelConfig& config,
                                             const TrainerSharding& sharding, uint32_t rank);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_TRAINER_LAYOUT_H_
