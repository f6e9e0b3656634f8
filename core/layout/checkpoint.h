// SPDX-License-Identifier: Apache-2.0

// A Hugging Face checkpoint: config.json beside one or several safetensors files.
#ifndef WAYBILL_CORE_LAYOUT_CHECKPOINT_H_
#define WAYBILL_CORE_LAYOUT_CHECKPOINT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"
#include "core/layout/model_config.h"
#include "core/layout/safetensors.h"

namespace waybill {

// Read-only; any number of threads may share it. The files stay mapped as long as it lives.
class Checkpoint {
 public:
  // Takes the files that model.safetensors.index.json names; without an index model.safetensors;
  // without that every *.safetensors of the directory. Without config.json the model is generic.
  //
  // kNotFound, kInvalidArgument: name the file, and the tensor.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory);

  const ModelConfig& config() const { return config_; }
  const std::string& config_json() const { return config_json_; }  // Empty if there is none.

  // Sorted by name.
  absl::Span<const CheckpointTensor> tensors() const { return tensors_; }
  // Returns null if there is no tensor of that name.
  const CheckpointTensor* Find(absl::string_view name) const;

 private:
  Checkpoint() = default;

  ModelConfig config_;
  std::string config_json_;
  std::vector<SafetensorsFile> files_;
  std::vector<CheckpointTensor> tensors_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_CHECKPOINT_H_
