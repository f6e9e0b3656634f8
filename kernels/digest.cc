// SPDX-License-Identifier: Apache-2.0

#include "kernels/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/digest_stripes.h"
#include "kernels/prefetch.h"
#include "kernels/scalar.h"

namespace waybill::kernels {
namespace {

static_assert(std::endian::native == std::endian::little, "Words are loaded as they lie.");
static_assert(kLeafBytes == scalar::kLeafWords * 8);

constexpr const auto& kKeys = scalar::kDigestConstants.keys;

bool IsAligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kStripeBytes == 0; }

}  // namespace

uint64_t LeafSum(const void* data, size_t size_bytes, uint64_t first_leaf) {
  DigestStream stream(first_leaf);
  stream.Absorb(data, size_bytes);
  return stream.sum();
}

uint64_t FinishDigest(uint64_t sum, uint64_t length_bytes) {
  return scalar::FinishDigest(sum, length_bytes);
}

uint64_t Digest(const void* data, size_t size_bytes) {
  return FinishDigest(LeafSum(data, size_bytes, 0), size_bytes);
}

void DigestStream::Advance(size_t size_bytes) {
  position_ += size_bytes;
  if (position_ < kLeafBytes) return;
  sum_ += scalar::LeafValue(lanes_, leaf_++);
  std::fill(std::begin(lanes_), std::end(lanes_), 0);
  position_ = 0;
}

// Takes what does not fill a word, or fills the one that is open; at most 8 bytes.
size_t DigestStream::AbsorbBytes(std::byte* dst, const std::byte* src, size_t size_bytes) {
  const size_t filled = position_ % 8;
  const size_t taken = std::min(size_bytes, 8 - filled);
  uint64_t bytes = 0;
  std::memcpy(&bytes, src, taken);
  if (dst != nullptr) std::memcpy(dst, &bytes, taken);
  partial_word_ |= bytes << (8 * filled);
  if (filled + taken == 8) {
    const size_t j = position_ / 8;
    scalar::AbsorbWord(partial_word_, kKeys[j], j % scalar::kLaneCount, lanes_);
    partial_word_ = 0;
  }
  Advance(taken);
  return taken;
}

// Takes what precedes the next whole stripe, or follows the last one; `dst` may be null.
size_t DigestStream::AbsorbEdge(std::byte* dst, const std::byte* src, size_t size_bytes) {
  if (position_ % 8 != 0 || size_bytes < 8) return AbsorbBytes(dst, src, size_bytes);
  const size_t in_stripe = position_ % kStripeBytes;
  const size_t words = std::min(size_bytes, kStripeBytes - in_stripe) / 8;
  AbsorbWords(dst, src, in_stripe / 8, words, &kKeys[(position_ - in_stripe) / 8], lanes_);
  Advance(words * 8);
  return words * 8;
}

size_t DigestStream::StripesWithin(size_t size_bytes) const {
  return std::min(size_bytes, kLeafBytes - position_) / kStripeBytes;
}

void DigestStream::Absorb(const void* data, size_t size_bytes) {
  TakeLong(size_bytes, [&](size_t begin, size_t end, ptrdiff_t ahead) {
    AbsorbRun(static_cast<const std::byte*>(data) + begin, end - begin, ahead);
  });
}

void DigestStream::AbsorbRun(const void* data, size_t size_bytes, ptrdiff_t ahead) {
  const std::byte* src = static_cast<const std::byte*>(data);
  while (size_bytes != 0) {
    size_t taken;
    if (position_ % kStripeBytes != 0 || size_bytes < kStripeBytes) {
      taken = AbsorbEdge(nullptr, src, size_bytes);
    } else if (position_ == 0 && size_bytes >= kLeafBytes) {
      const size_t leaves = size_bytes / kLeafBytes;
      sum_ += SumLeaves(src, leaves, leaf_, ahead);
      leaf_ += leaves;
      taken = leaves * kLeafBytes;
    } else {
      taken = StripesWithin(size_bytes) * kStripeBytes;
      AbsorbStripes(src, taken / kStripeBytes, &kKeys[position_ / 8], lanes_, ahead);
      Advance(taken);
    }
    src += taken;
    size_bytes -= taken;
  }
}

void DigestStream::AbsorbCopy(void* dst, const void* src, size_t size_bytes, Stores stores) {
  TakeLong(size_bytes, [&](size_t begin, size_t end, ptrdiff_t ahead) {
    AbsorbCopyRun(static_cast<std::byte*>(dst) + begin, static_cast<const std::byte*>(src) + begin,
                  end - begin, stores, ahead);
  });
}

void DigestStream::AbsorbCopyRun(void* dst_data, const void* src_data, size_t size_bytes,
                                 Stores stores, ptrdiff_t ahead) {
  std::byte* dst = static_cast<std::byte*>(dst_data);
  const std::byte* src = static_cast<const std::byte*>(src_data);
  // Where the stream's stripes are not the destination's cache lines, bytes that are to be streamed
  // pass through here: what was absorbed is copied on, from the first-level cache.
  alignas(kStripeBytes) std::byte bounce[kLeafBytes];
  while (size_bytes != 0) {
    size_t taken;
    if (position_ % kStripeBytes != 0 || size_bytes < kStripeBytes) {
      taken = AbsorbEdge(dst, src, size_bytes);
    } else if (stores == Stores::kStreaming && !IsAligned(dst)) {
      taken = StripesWithin(size_bytes) * kStripeBytes;
      AbsorbCopyStripes(bounce, src, taken / kStripeBytes, &kKeys[position_ / 8], lanes_,
                        Stores::kCached, ahead);
      CopyRun(dst, bounce, taken, stores, 0);
      Advance(taken);
    } else if (position_ == 0 && size_bytes >= kLeafBytes) {
      const size_t leaves = size_bytes / kLeafBytes;
      sum_ += SumCopyLeaves(dst, src, leaves, leaf_, stores, ahead);
      leaf_ += leaves;
      taken = leaves * kLeafBytes;
    } else {
      taken = StripesWithin(size_bytes) * kStripeBytes;
      AbsorbCopyStripes(dst, src, taken / kStripeBytes, &kKeys[position_ / 8], lanes_, stores,
                        ahead);
      Advance(taken);
    }
    dst += taken;
    src += taken;
    size_bytes -= taken;
  }
}

uint64_t DigestStream::sum() const {
  if (position_ == 0) return sum_;
  uint64_t lanes[scalar::kLaneCount];
  std::copy(std::begin(lanes_), std::end(lanes_), lanes);
  if (position_ % 8 != 0) {
    const size_t j = position_ / 8;
    scalar::AbsorbWord(partial_word_, kKeys[j], j % scalar::kLaneCount, lanes);
  }
  return sum_ + scalar::LeafValue(lanes, leaf_);
}

}  // namespace waybill::kernels
