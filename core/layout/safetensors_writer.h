// SPDX-License-Identifier: Apache-2.0

// Writes safetensors files that are either whole or not there.
#ifndef WAYBILL_CORE_LAYOUT_SAFETENSORS_WRITER_H_
#define WAYBILL_CORE_LAYOUT_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"

namespace waybill {

enum class Durability : uint8_t {
  kSynced,  // On the disk when the call returns.
  kCached,  // In the page cache: for what can be made again.
};

// Gives `bytes.size()` bytes of a tensor's data, from `offset_bytes` on (a multiple of 8).
using TensorBytes = std::function<void(const CheckpointTensor& tensor, uint64_t offset_bytes,
                                       absl::Span<std::byte> bytes)>;

// Writes `tensors`, in this order, to `path`. They come from `bytes`, or, where that is empty, from
// their own `data`. Until all is written the file is called "<path>.part"; after an error it is
// gone. A file that was at `path` is replaced.
//
// kResourceExhausted: the disk or a limit on files is full; names the file, the tensor and how many
// bytes had been written. kInvalidArgument: a tensor is given twice, or its data is not as long as
// its shape says.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const CheckpointTensor> tensors,
                              Durability durability, const TensorBytes& bytes = nullptr);

// Returns the name that Hugging Face gives file `i` (from 0) of so many:
// "model-00001-of-00002.safetensors".
std::string FileName(size_t i, size_t count);

// A file of a checkpoint, and the tensors in it, whose `data` is not read.
struct IndexedFile {
  std::string name;
  absl::Span<const CheckpointTensor> tensors;
};

// Writes model.safetensors.index.json, which says in which file each tensor is, into `directory`.
absl::Status WriteIndex(const std::string& directory, absl::Span<const IndexedFile> files,
                        Durability durability);

// Writes a checkpoint into `directory`, which is made if need be: config.json unless `config_json`
// is empty, and the tensors in files of at most `max_file_bytes` (a larger tensor has its own),
// with an index where there are several.
//
// kAlreadyExists: there are safetensors files in the directory.
absl::Status WriteCheckpoint(const std::string& directory, absl::string_view config_json,
                             absl::Span<const CheckpointTensor> tensors, uint64_t max_file_bytes,
                             Durability durability, const TensorBytes& bytes = nullptr);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_SAFETENSORS_WRITER_H_
