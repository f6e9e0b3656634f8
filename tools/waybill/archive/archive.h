// SPDX-License-Identifier: Apache-2.0

// Keeps versions of a model as folders of safetensors files that are whole or not there.
#ifndef WAYBILL_TOOLS_WAYBILL_ARCHIVE_ARCHIVE_H_
#define WAYBILL_TOOLS_WAYBILL_ARCHIVE_ARCHIVE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint_tensor.h"

namespace waybill {

// Deals tensors to so many parts of about the same size; the same tensors are dealt alike in each
// process. A part is empty if there are more parts than tensors.
std::vector<std::vector<CheckpointTensor>> DealTensors(absl::Span<const CheckpointTensor> tensors,
                                                       uint32_t parts);

// The folder has a folder "version-N" for each version, as transformers loads it, and a link
// "newest" to the newest one. Until the last part of a version is written, its folder is called
// "version-N.part". Processes that write different parts may share the folder.
class Archive {
 public:
  // Makes the folder if need be. What there is in the folder `others` besides weights (config.json,
  // the tokenizer) goes into each version; empty: nothing.
  //
  // kNotFound, kFailedPrecondition: names the folder.
  static absl::StatusOr<Archive> Open(std::string folder, const std::string& others);

  // Returns the whole versions, the oldest first.
  absl::StatusOr<std::vector<uint64_t>> Versions() const;

  // Writes part `part` of a version, whose tensors have their `data`; those of other parts need
  // none. The part is on the disk then. Returns true if this has made the version whole, which one
  // of the processes is told.
  //
  // kResourceExhausted: the disk is full; the versions before are as they were.
  absl::StatusOr<bool> Write(uint64_t version, uint32_t part,
                             absl::Span<const std::vector<CheckpointTensor>> parts) const;

  // Removes all but the newest `count` whole versions (0: none), and what was not finished of
  // versions before the newest.
  absl::Status Keep(uint64_t count) const;

  // Removes what was not finished. Call it in one process before any writes: a part that was left
  // by another job would be taken for one of this.
  absl::Status RemoveUnfinished() const;

  // Returns where a whole version is.
  std::string FolderOf(uint64_t version) const;

 private:
  Archive(std::string folder, std::vector<std::string> others)
      : folder_(std::move(folder)), others_(std::move(others)) {}

  absl::Status Link(uint64_t version) const;
  absl::Status Remove(uint64_t whole_before, uint64_t unfinished_before) const;

  std::string folder_;
  std::vector<std::string> others_;  // Paths of files.
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_ARCHIVE_ARCHIVE_H_
