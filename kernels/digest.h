// SPDX-License-Identifier: Apache-2.0

// The digest of a byte stream: 64 bits by which both ends of a route check that they have the same
// bytes. Not cryptographic. README.md has the normative definition, which never changes.
//
// A stream is cut into leaves. Each leaf has a value, and the values are added. So any order, any
// cut at leaf boundaries and any number of threads give the same digest.

#ifndef KERNELS_DIGEST_H_
#define KERNELS_DIGEST_H_

#include <cstddef>
#include <cstdint>

#include "kernels/copy.h"

namespace waybill::kernels {

inline constexpr size_t kLeafBytes = 4096;

// Returns the sum (mod 2^64) of the values of the leaves in a range. The range begins with leaf
// `first_leaf` of its stream, and is a multiple of kLeafBytes or ends the stream. An empty range
// gives 0.
uint64_t LeafSum(const void* data, size_t size_bytes, uint64_t first_leaf);

// Returns the digest of a whole stream, from the sum of the values of its leaves.
uint64_t FinishDigest(uint64_t sum, uint64_t length_bytes);

// Returns the digest of `size_bytes` contiguous bytes.
uint64_t Digest(const void* data, size_t size_bytes);

// Computes the same sum for a stream that comes in pieces of any size and alignment. Has no buffer:
// it carries the accumulators of the open leaf from piece to piece. Not thread-safe.
class DigestStream {
 public:
  // Begins at leaf `first_leaf` of a stream, so that threads can divide a stream at leaf
  // boundaries.
  explicit DigestStream(uint64_t first_leaf = 0) : leaf_(first_leaf) {}

  void Absorb(const void* data, size_t size_bytes);

  // Copies and absorbs in one pass. Reads each byte of `src` once, so that the stored byte is the
  // absorbed byte even if somebody writes to `src` meanwhile.
  void AbsorbCopy(void* dst, const void* src, size_t size_bytes, Stores stores);

  // Absorb, or copy and absorb, one of many runs in the same way. They prefetch the line `ahead`
  // bytes after each line that they read; 0 prefetches nothing new.
  void AbsorbRun(const void* data, size_t size_bytes, ptrdiff_t ahead);
  void AbsorbCopyRun(void* dst, const void* src, size_t size_bytes, Stores stores, ptrdiff_t ahead);

  // Returns the sum of the leaves so far, as if the stream ended here.
  uint64_t sum() const;

 private:
  friend class StripeWindow;

  size_t AbsorbBytes(std::byte* dst, const std::byte* src, size_t size_bytes);
  size_t AbsorbEdge(std::byte* dst, const std::byte* src, size_t size_bytes);
  size_t StripesWithin(size_t size_bytes) const;
  void Advance(size_t size_bytes);

  alignas(64) uint64_t lanes_[8] = {};
  uint64_t leaf_;
  uint64_t sum_ = 0;
  uint64_t partial_word_ = 0;  // The position_ % 8 bytes that do not fill a word yet.
  size_t position_ = 0;        // The position in the open leaf, below kLeafBytes.
};

}  // namespace waybill::kernels

#endif  // KERNELS_DIGEST_H_
