// SPDX-License-Identifier: Apache-2.0

// Takes over the largest changes between two versions, and leaves the others for later.
#ifndef WAYBILL_CORE_CHANGE_LARGEST_CHANGES_H_
#define WAYBILL_CORE_CHANGE_LARGEST_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/elements.h"

namespace waybill {

// Has the memory that this needs. Not thread-safe.
class LargestChanges {
 public:
  static constexpr size_t kBlockElements = 65'536;

  LargestChanges();

  // Copies those `most` elements of `newest` to `image` whose change is the largest relative to the
  // element, |newest - image| / max(|newest|, |image|). Of equal changes the first ones are taken.
  // A NaN on either side, and an infinity that is left, are the largest of all; elements with equal
  // bits have not changed. Returns the number of changed elements that were not taken.
  //
  // `elements`: at most kBlockElements, of `type`, to which both are aligned.
  uint64_t Take(kernels::Wide type, const std::byte* newest, std::byte* image, size_t elements,
                size_t most);

 private:
  void RankChanges(kernels::Wide type, const std::byte* newest, const std::byte* image,
                   size_t elements);
  uint32_t FindLeast(size_t most);

  std::vector<float> newest_;
  std::vector<float> before_;
  // For each element, the bits of its relative change, in which larger is larger. 0: unchanged.
  std::vector<uint32_t> changes_;
  std::vector<uint32_t> candidates_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CHANGE_LARGEST_CHANGES_H_
