// The digest's inner loops, for every vector target. A stripe is 64 bytes: one word for each lane.
// Of use to digest.cc only.

#ifndef KERNELS_DIGEST_STRIPES_H_
#define KERNELS_DIGEST_STRIPES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/copy.h"

namespace waybill::kernels {

inline constexpr size_t kStripeBytes = 64;

// Keeps the compiler from loading `word` a second time: what is stored must be what is absorbed,
// also where somebody writes to the source meanwhile. (And one load is faster.)
inline void LoadedOnce(uint64_t& word) { asm("" : "+r"(word)); }

// Adds `stripe_count` stripes of one leaf to its eight lanes; `keys` are those of the first word.
void AbsorbStripes(const std::byte* src, size_t stripe_count, const uint64_t* keys,
                   uint64_t* lanes);

// The same, and copies. kStreaming only where `dst` is a multiple of 64.
void AbsorbCopyStripes(std::byte* dst, const std::byte* src, size_t stripe_count,
                       const uint64_t* keys, uint64_t* lanes, Stores stores);

// The same for `word_count` words of one stripe, beginning with its word `first_word`; `keys` are
// those of the stripe's own first word. Copies unless `dst` is null.
void AbsorbWords(std::byte* dst, const std::byte* src, size_t first_word, size_t word_count,
                 const uint64_t* keys, uint64_t* lanes);

// The sum of the values of whole leaves.
uint64_t SumLeaves(const std::byte* src, size_t leaf_count, uint64_t first_leaf);

// The same, and copies. kStreaming only where `dst` is a multiple of 64.
uint64_t SumCopyLeaves(std::byte* dst, const std::byte* src, size_t leaf_count, uint64_t first_leaf,
                       Stores stores);

}  // namespace waybill::kernels

#endif  // KERNELS_DIGEST_STRIPES_H_
