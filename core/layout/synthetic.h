// SPDX-License-Identifier: Apache-2.0

// Makes synthetic checkpoints with real shapes and seeded numbers.
#ifndef WAYBILL_CORE_LAYOUT_SYNTHETIC_H_
#define WAYBILL_CORE_LAYOUT_SYNTHETIC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"

namespace waybill {

// "gpt2", "qwen3-0.6b" and so on.
std::vector<absl::string_view> SyntheticModelNames();

struct SyntheticModel {
  std::string config_json;
  std::vector<CheckpointTensor> tensors;  // Without data.
};

// kInvalidArgument: no such model (the message lists those there are), or `layers` is not in
// [1, the model's own].
absl::StatusOr<SyntheticModel> MakeSyntheticModel(absl::string_view name,
                                                  std::optional<int64_t> layers);

// Fills `bytes`, which begin at `offset_bytes` (a multiple of 8) of the tensor's data. The same
// seed, name and dtype give the same numbers, all finite. Tensors of F32, BF16 or U8 only.
void FillSynthetic(uint64_t seed, const CheckpointTensor& tensor, uint64_t offset_bytes,
                   absl::Span<std::byte> bytes);

// Writes the model as a checkpoint that Checkpoint::Open() reads, in files of at most 1 GiB.
absl::Status WriteSyntheticCheckpoint(absl::string_view name, std::optional<int64_t> layers,
                                      uint64_t seed, const std::string& directory);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_SYNTHETIC_H_
