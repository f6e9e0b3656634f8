// SPDX-License-Identifier: Apache-2.0

// Reads safetensors files, and believes nothing that they say about themselves.
#ifndef WAYBILL_CORE_LAYOUT_SAFETENSORS_H_
#define WAYBILL_CORE_LAYOUT_SAFETENSORS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"

namespace waybill {

// The tensors of a whole file that lies at `file`, in the order of their data; their spans point
// into it. Data has to be tiled exactly: no hole, no overlap, nothing behind the last tensor.
//
// kInvalidArgument: the file is cut short, or its header is not one; says which byte or tensor.
absl::StatusOr<std::vector<CheckpointTensor>> ParseSafetensors(absl::Span<const std::byte> file);

// One file, mapped for reading. Its tensors live as long as it does. Whoever truncates the file
// meanwhile ends the reader by SIGBUS: do not.
class SafetensorsFile {
 public:
  // Opens a file. Fails with kNotFound or another error of open(), which names the file, or as
  // ParseSafetensors() does.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  absl::Span<const CheckpointTensor> tensors() const { return tensors_; }

 private:
  SafetensorsFile() = default;

  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  std::vector<CheckpointTensor> tensors_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_SAFETENSORS_H_
