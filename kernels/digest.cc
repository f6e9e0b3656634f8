#include "kernels/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/digest_stripes.h"
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

// Up to `size_bytes` bytes, but not past the end of the stripe; `dst` may be null.
size_t DigestStream::AbsorbWords(std::byte* dst, const std::byte* src, size_t size_bytes) {
  const size_t stripe_left = kStripeBytes - position_ % kStripeBytes;
  size_t left = std::min(size_bytes, stripe_left);
  const size_t taken = left;
  while (left != 0) {
    const size_t filled = position_ % 8;
    const size_t piece = std::min(left, 8 - filled);
    uint64_t word = 0;
    // The constant size lets whole words, which are nearly all, be one load and one store.
    if (piece == 8) {
      std::memcpy(&word, src, 8);
      LoadedOnce(word);
      if (dst != nullptr) std::memcpy(dst, &word, 8);
    } else {
      std::memcpy(&word, src, piece);
      if (dst != nullptr) std::memcpy(dst, &word, piece);
    }
    partial_word_ |= word << (8 * filled);
    if (filled + piece == 8) {
      const size_t j = position_ / 8;
      scalar::AbsorbWord(partial_word_, kKeys[j], j % scalar::kLaneCount, lanes_);
      partial_word_ = 0;
    }
    Advance(piece);
    src += piece;
    if (dst != nullptr) dst += piece;
    left -= piece;
  }
  return taken;
}

void DigestStream::Absorb(const void* data, size_t size_bytes) {
  const std::byte* src = static_cast<const std::byte*>(data);
  while (size_bytes != 0) {
    size_t taken;
    if (position_ == 0 && size_bytes >= kLeafBytes) {
      const size_t leaves = size_bytes / kLeafBytes;
      sum_ += SumLeaves(src, leaves, leaf_);
      leaf_ += leaves;
      taken = leaves * kLeafBytes;
    } else if (position_ % kStripeBytes == 0 && size_bytes >= kStripeBytes) {
      const size_t stripes = std::min(size_bytes, kLeafBytes - position_) / kStripeBytes;
      AbsorbStripes(src, stripes, &kKeys[position_ / 8], lanes_);
      taken = stripes * kStripeBytes;
      Advance(taken);
    } else {
      taken = AbsorbWords(nullptr, src, size_bytes);
    }
    src += taken;
    size_bytes -= taken;
  }
}

void DigestStream::AbsorbCopy(void* dst_data, const void* src_data, size_t size_bytes,
                              Stores stores) {
  std::byte* dst = static_cast<std::byte*>(dst_data);
  const std::byte* src = static_cast<const std::byte*>(src_data);
  // Where the stream's stripes are not the destination's cache lines, bytes that are to be streamed
  // pass through here: what was absorbed is copied on, from the first-level cache.
  alignas(kStripeBytes) std::byte bounce[kLeafBytes];
  while (size_bytes != 0) {
    size_t taken;
    if (position_ % kStripeBytes != 0 || size_bytes < kStripeBytes) {
      taken = AbsorbWords(dst, src, size_bytes);
    } else if (stores == Stores::kStreaming && !IsAligned(dst)) {
      const size_t stripes = std::min(size_bytes, kLeafBytes - position_) / kStripeBytes;
      AbsorbCopyStripes(bounce, src, stripes, &kKeys[position_ / 8], lanes_, Stores::kCached);
      taken = stripes * kStripeBytes;
      Copy(dst, bounce, taken, stores);
      Advance(taken);
    } else if (position_ == 0 && size_bytes >= kLeafBytes) {
      const size_t leaves = size_bytes / kLeafBytes;
      sum_ += SumCopyLeaves(dst, src, leaves, leaf_, stores);
      leaf_ += leaves;
      taken = leaves * kLeafBytes;
    } else {
      const size_t stripes = std::min(size_bytes, kLeafBytes - position_) / kStripeBytes;
      AbsorbCopyStripes(dst, src, stripes, &kKeys[position_ / 8], lanes_, stores);
      taken = stripes * kStripeBytes;
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
