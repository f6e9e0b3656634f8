// SPDX-License-Identifier: Apache-2.0

// A stretch of a stream whose stripes are absorbed in any order: as a kernel makes them, while they
// are in the first-level cache.

#ifndef KERNELS_STRIPE_WINDOW_H_
#define KERNELS_STRIPE_WINDOW_H_

#include <cstddef>
#include <cstdint>

#include "kernels/digest.h"
#include "kernels/digest_stripes.h"
#include "kernels/scalar.h"

namespace waybill::kernels {

// Keeps the lanes of all its leaves open. Whoever holds it absorbs each of its stripes once, and
// does nothing else with the stream meanwhile.
class StripeWindow {
 public:
  static constexpr size_t kMostBytes = size_t{1} << 20;

  // Returns true if a window can hold the next `size_bytes` of a stream, which come in rows of
  // `row_bytes`: the rows begin at stripes, and kMostBytes suffice.
  static bool Fits(const DigestStream& stream, size_t row_bytes, size_t size_bytes);

  // Opens the next `size_bytes` of `stream`, which Fits().
  StripeWindow(DigestStream* stream, size_t size_bytes);

  // Hands the leaves over to the stream, which continues behind them.
  ~StripeWindow();

  StripeWindow(const StripeWindow&) = delete;
  StripeWindow& operator=(const StripeWindow&) = delete;

  // Returns true if so many bytes from `offset` on lie in one leaf, which has the same lanes.
  bool IsOneLeaf(size_t offset, size_t size_bytes) const {
    return (begin_ + offset) % kLeafBytes + size_bytes <= kLeafBytes;
  }

  // The lanes and keys of the stripe at `offset`, a multiple of kStripeBytes from where the window
  // begins.
  uint64_t* lanes(size_t offset) {
    return lanes_ + (begin_ + offset) / kLeafBytes * scalar::kLaneCount;
  }
  const uint64_t* keys(size_t offset) const {
    return scalar::kDigestConstants.keys.data() + (begin_ + offset) % kLeafBytes / 8;
  }

 private:
  static constexpr size_t kMostLeaves = kMostBytes / kLeafBytes + 1;

  DigestStream* const stream_;
  const size_t begin_;  // The window's offset in the leaf that the stream has open.
  const size_t size_bytes_;
  alignas(64) uint64_t lanes_[kMostLeaves * scalar::kLaneCount];
};

}  // namespace waybill::kernels

#endif  // KERNELS_STRIPE_WINDOW_H_
