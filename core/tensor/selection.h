// SPDX-License-Identifier: Apache-2.0

// Says which part of its tensors a trainer takes over into a version.
#ifndef WAYBILL_CORE_TENSOR_SELECTION_H_
#define WAYBILL_CORE_TENSOR_SELECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/tensor/manifest.h"

namespace waybill {

struct Selection {
  static constexpr uint32_t kMillion = 1'000'000;

  // Names of tensors, of aliases, or patterns as fnmatch(3) takes them, in which * stands for any
  // text. Empty: all tensors.
  std::vector<std::string> tensors = {};
  // Of each tensor, at most this many of a million elements: those that have changed most.
  uint32_t at_most_ppm = kMillion;

  bool everything() const { return tensors.empty() && at_most_ppm == kMillion; }

  // kInvalidArgument: at_most_ppm is out of range.
  absl::Status Check() const;

  // Returns for each tensor of the manifest whether it is selected. Adds to `unknown`, unless that
  // is null, the names and patterns that select none.
  std::vector<bool> SelectIn(const Manifest& manifest, std::vector<std::string>* unknown) const;

  // Names what a version is made of into which this selection was taken over, upon the version
  // before it. Equal for trainers that have made the same versions of the same selections, and not
  // 0, which names the trainers' tensors themselves.
  uint64_t Compose(uint64_t version_before, uint64_t composition_before) const;

  bool operator==(const Selection&) const = default;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_SELECTION_H_
