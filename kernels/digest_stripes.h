// SPDX-License-Identifier: Apache-2.0

// The inner loops of digest.cc, for every vector target. A stripe is 64 bytes: one word for each
// lane.

#ifndef KERNELS_DIGEST_STRIPES_H_
#define KERNELS_DIGEST_STRIPES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/copy.h"

namespace waybill::kernels {

inline constexpr size_t kStripeBytes = 64;

// Keeps the compiler from loading `word` a second time, so that the stored bytes are the absorbed
// bytes even while somebody writes to the source. (One load is also faster.)
inline void LoadedOnce(uint64_t& word) { asm("" : "+r"(word)); }

// Adds `stripe_count` stripes of one leaf to its eight lanes. `keys` begins with the first word's
// key. Prefetches the line `ahead` bytes after each line.
void AbsorbStripes(const std::byte* src, size_t stripe_count, const uint64_t* keys, uint64_t* lanes,
                   ptrdiff_t ahead);

// The same, and copies. kStreaming only where `dst` is a multiple of 64.
void AbsorbCopyStripes(std::byte* dst, const std::byte* src, size_t stripe_count,
                       const uint64_t* keys, uint64_t* lanes, Stores stores, ptrdiff_t ahead);

// The same for `word_count` words of one stripe, beginning with its word `first_word`; `keys` are
// those of the stripe's own first word. Copies unless `dst` is null.
void AbsorbWords(std::byte* dst, const std::byte* src, size_t first_word, size_t word_count,
                 const uint64_t* keys, uint64_t* lanes);

// Returns the sum of the values of whole leaves. `ahead` is as above.
uint64_t SumLeaves(const std::byte* src, size_t leaf_count, uint64_t first_leaf, ptrdiff_t ahead);

// The same, and copies. kStreaming only where `dst` is a multiple of 64.
uint64_t SumCopyLeaves(std::byte* dst, const std::byte* src, size_t leaf_count, uint64_t first_leaf,
                       Stores stores, ptrdiff_t ahead);

}  // namespace waybill::kernels

#endif  // KERNELS_DIGEST_STRIPES_H_
