// SPDX-License-Identifier: Apache-2.0

#include "core/change/change_encoder.h"

// As in kernels/maxima_rows.cc.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/change/change_encoder.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "kernels/changed.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(std::endian::native == std::endian::little, "Elements are loaded as they lie.");

template <typename T>
T Load(const std::byte* data, size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

// Writes bits upwards from the lowest one of each byte. Stores whole words, of which the last may
// reach 7 bytes beyond what was written.
class BitWriter {
 public:
  explicit BitWriter(std::byte* at) : at_(at) {}

  // `width` is at most 56; `bits` has no more.
  void Put(uint64_t bits, uint32_t width) {
    open_ |= bits << fill_;
    fill_ += width;
    std::memcpy(at_, &open_, sizeof(open_));
    at_ += fill_ / 8;
    open_ >>= fill_ & ~7u;
    fill_ &= 7;
  }

  // Ends the byte that is open, and returns the next one.
  std::byte* Finish() {
    if (fill_ != 0) *at_++ = static_cast<std::byte>(open_);
    return at_;
  }

 private:
  std::byte* at_;
  uint64_t open_ = 0;
  uint32_t fill_ = 0;
};

// Vectors of values, and so many values of memory behind an array that whole vectors are loaded.
template <typename T>
using VectorTag = hn::CappedTag<T, 64 / sizeof(T)>;
template <typename T>
constexpr size_t kPadding = 64 / sizeof(T);

// Writes the largest value to the memory behind `count` values.
template <typename T>
void Pad(T* values, size_t count) {
  std::fill_n(values + count, kPadding<T>, std::numeric_limits<T>::max());
}

// Returns how many of the values are below the limit. The array is padded.
template <typename T>
size_t CountBelow(const T* values, size_t count, uint64_t limit) {
  if (limit > std::numeric_limits<T>::max()) return count;
  const VectorTag<T> d;
  const auto bounds = hn::Set(d, static_cast<T>(limit));
  size_t below = 0;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    below += hn::CountTrue(d, hn::Lt(hn::LoadU(d, values + i), bounds));
  }
  return below;
}

constexpr size_t BytesOf(uint64_t bits) { return (bits + 7) / 8; }

// Encodes blocks: measures one, and then writes it if that is wanted.
template <typename T>
class BlockEncoder {
 public:
  // Returns the bytes that the block takes.
  size_t Measure(const std::byte* newest, const std::byte* before, size_t element_count);

  // Writes the block that was measured last, and returns the end of it.
  std::byte* Write(std::byte* out) const;

  bool changed() const { return changed_count_ != 0; }

 private:
  static constexpr uint32_t kBits = sizeof(T) * 8;

  void Describe(const std::byte* before);
  void Choose();
  size_t GapsBelow(uint64_t limit) const { return CountBelow(gaps_, changed_count_, limit); }
  size_t MagnitudesBelow(uint64_t limit) const {
    return CountBelow(distances_, changed_count_, 2 * limit);
  }
  size_t GapBits(uint32_t k) const;
  size_t DistanceBits(uint32_t k) const;
  std::byte* WriteGaps(std::byte* out) const;
  std::byte* WriteRuns(std::byte* out) const;
  std::byte* WriteDistances(std::byte* out) const;

  const std::byte* newest_ = nullptr;
  size_t changed_count_ = 0;
  BlockHeader header_;
  size_t size_bytes_ = 0;
  uint16_t indices_[kBlockElements];
  uint16_t gaps_[kBlockElements + kPadding<uint16_t>];
  T distances_[kBlockElements + kPadding<T>];  // m << 1 | sign.
};

template <typename T>
size_t BlockEncoder<T>::Measure(const std::byte* newest, const std::byte* before,
                                size_t element_count) {
  newest_ = newest;
  changed_count_ = kernels::FindChanged(newest, before, element_count, sizeof(T), indices_);
  header_ = {};
  size_bytes_ = BlockHeader::kBytes;
  if (changed_count_ != 0) {
    Describe(before);
    Choose();
  }
  return size_bytes_;
}

template <typename T>
void BlockEncoder<T>::Describe(const std::byte* before) {
  uint32_t next = 0;  // One past the last changed element.
  for (size_t i = 0; i < changed_count_; ++i) {
    const uint32_t index = indices_[i];
    gaps_[i] = static_cast<uint16_t>(index - next);
    next = index + 1;
    const T distance =
        static_cast<T>(Order(Load<T>(newest_, index)) - Order(Load<T>(before, index)));
    const T sign = distance >> (kBits - 1);
    const T magnitude = static_cast<T>((distance ^ (T(0) - sign)) - 1 + sign);
    distances_[i] = static_cast<T>(magnitude << 1 | sign);
  }
  Pad(gaps_, changed_count_);
  Pad(distances_, changed_count_);
}

template <typename T>
void BlockEncoder<T>::Choose() {
  uint32_t gap_k = 0;
  while (8 * GapsBelow(uint64_t{1} << gap_k) < 3 * changed_count_) ++gap_k;
  const size_t gap_bytes = BytesOf(GapBits(gap_k));
  // A run begins with the first changed element, and with each one after a gap.
  const size_t run_count = changed_count_ - GapsBelow(1) + (gaps_[0] == 0 ? 1 : 0);
  const size_t run_bytes = run_count * kRunBytes;
  const bool runs = run_bytes < gap_bytes;
  header_.count = static_cast<uint32_t>(runs ? run_count : changed_count_);
  header_.index_code = runs ? BlockHeader::kRuns : gap_k;

  uint32_t distance_k = 0;
  while (2 * MagnitudesBelow(uint64_t{1} << distance_k) < changed_count_) ++distance_k;
  const size_t distance_bytes = BytesOf(DistanceBits(distance_k));
  const size_t raw_bytes = changed_count_ * sizeof(T);
  const bool raw = raw_bytes <= distance_bytes;
  header_.value_code = raw ? BlockHeader::kRawValues : distance_k;
  size_bytes_ += std::min(run_bytes, gap_bytes) + std::min(raw_bytes, distance_bytes);
}

// Counts the bits from 1 + k on that each longer quotient adds.
template <typename T>
size_t BlockEncoder<T>::GapBits(uint32_t k) const {
  size_t bits = changed_count_ * (1 + k);
  for (uint64_t quotient = 1; quotient <= kMostQuotient; ++quotient) {
    const size_t longer = changed_count_ - GapsBelow(quotient << k);
    if (longer == 0) break;
    bits += longer * (quotient < kMostQuotient ? 1 : kIndexBits - k);
  }
  return bits;
}

// Counts the bits from 2 + k on, which each further digit of m + 2^k lengthens by two.
template <typename T>
size_t BlockEncoder<T>::DistanceBits(uint32_t k) const {
  size_t bits = changed_count_ * (2 + k);
  for (uint32_t digits = k + 1; digits < kBits; ++digits) {
    const size_t longer =
        changed_count_ - MagnitudesBelow((uint64_t{1} << digits) - (uint64_t{1} << k));
    if (longer == 0) break;
    bits += 2 * longer;
  }
  return bits;
}

template <typename T>
std::byte* BlockEncoder<T>::Write(std::byte* out) const {
  const uint32_t number = header_.Pack();
  std::memcpy(out, &number, BlockHeader::kBytes);
  out += BlockHeader::kBytes;
  if (header_.count == 0) return out;
  out = header_.index_code == BlockHeader::kRuns ? WriteRuns(out) : WriteGaps(out);
  if (header_.value_code != BlockHeader::kRawValues) return WriteDistances(out);
  for (size_t i = 0; i < changed_count_; ++i, out += sizeof(T)) {
    std::memcpy(out, newest_ + indices_[i] * sizeof(T), sizeof(T));
  }
  return out;
}

template <typename T>
std::byte* BlockEncoder<T>::WriteGaps(std::byte* out) const {
  BitWriter writer(out);
  const uint32_t k = header_.index_code;
  for (size_t i = 0; i < changed_count_; ++i) {
    const uint64_t gap = gaps_[i];
    const uint32_t quotient = static_cast<uint32_t>(gap) >> k;
    if (quotient < kMostQuotient) {
      const uint64_t low = gap & ((uint64_t{1} << k) - 1);
      writer.Put((low << 1 | 1) << quotient, quotient + 1 + k);
    } else {
      writer.Put(gap << kMostQuotient, kMostQuotient + kIndexBits);
    }
  }
  return writer.Finish();
}

template <typename T>
std::byte* BlockEncoder<T>::WriteRuns(std::byte* out) const {
  for (size_t begin = 0, end; begin < changed_count_; begin = end) {
    end = begin + 1;
    while (end < changed_count_ && indices_[end] == indices_[end - 1] + 1) ++end;
    const uint16_t run[] = {indices_[begin], static_cast<uint16_t>(end - begin)};
    static_assert(sizeof(run) == kRunBytes);
    std::memcpy(out, run, kRunBytes);
    out += kRunBytes;
  }
  return out;
}

template <typename T>
std::byte* BlockEncoder<T>::WriteDistances(std::byte* out) const {
  BitWriter writer(out);
  const uint32_t k = header_.value_code;
  for (size_t i = 0; i < changed_count_; ++i) {
    const uint64_t x = (uint64_t{distances_[i]} >> 1) + (uint64_t{1} << k);
    const uint32_t low_width = static_cast<uint32_t>(std::bit_width(x)) - 1;
    const uint32_t zeros = low_width - k;
    const uint64_t low = x ^ uint64_t{1} << low_width;
    const uint64_t sign = distances_[i] & 1;
    if constexpr (sizeof(T) == 4) {  // Both parts may have more than a Put() takes.
      writer.Put(uint64_t{1} << zeros, zeros + 1);
      writer.Put(low | sign << low_width, low_width + 1);
    } else {
      writer.Put((low << 1 | 1) << zeros | sign << (zeros + 1 + low_width), zeros + low_width + 2);
    }
  }
  return writer.Finish();
}

// Encodes a chunk, or only measures it if `out` is null.
template <typename T>
EncodedChunk EncodeElements(absl::Span<const std::byte> newest, absl::Span<const std::byte> before,
                            std::byte* out) {
  const size_t element_count = newest.size() / sizeof(T);
  const EncodedChunk whole = {ChunkKind::kWhole, 1 + newest.size()};
  BlockEncoder<T> block;
  size_t size_bytes = 1;
  bool changed = false;
  for (size_t first = 0; first < element_count; first += kBlockElements) {
    const size_t offset = first * sizeof(T);
    size_bytes += block.Measure(newest.data() + offset, before.data() + offset,
                                std::min(kBlockElements, element_count - first));
    changed = changed || block.changed();
    if (size_bytes < whole.size_bytes) {
      if (out != nullptr) out = block.Write(out);
    } else if (changed) {
      return whole;
    }
  }
  if (!changed) return {ChunkKind::kUnchanged, 1};
  return {ChunkKind::kElements, size_bytes};
}

}  // namespace

EncodedChunk EncodeChunk(absl::Span<const std::byte> newest, absl::Span<const std::byte> before,
                         ElementWidth width, std::byte* out) {
  if (width == ElementWidth::kOne) return EncodeElements<uint8_t>(newest, before, out);
  if (width == ElementWidth::kTwo) return EncodeElements<uint16_t>(newest, before, out);
  return EncodeElements<uint32_t>(newest, before, out);
}

}  // namespace waybill::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill {

HWY_EXPORT(EncodeChunk);

absl::StatusOr<EncodedChunk> EncodeChanges(absl::Span<const std::byte> newest,
                                           absl::Span<const std::byte> before, ElementWidth width,
                                           absl::Span<std::byte> out) {
  WAYBILL_RETURN_IF_ERROR(CheckChunk(newest.size(), before.size(), width));
  if (out.size() < EncodingRoomBytes(newest.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("encode a chunk of ", newest.size(), " bytes into ", out.size(), "; ",
                     EncodingRoomBytes(newest.size()), " are needed"));
  }
  std::byte* const rest = out.data() + 1;
  const EncodedChunk encoded = HWY_DYNAMIC_DISPATCH(EncodeChunk)(newest, before, width, rest);
  out[0] = std::byte{FirstByte(encoded.kind, width)};
  if (encoded.kind == ChunkKind::kWhole) std::memcpy(rest, newest.data(), newest.size());
  return encoded;
}

absl::StatusOr<EncodedChunk> MeasureChanges(absl::Span<const std::byte> newest,
                                            absl::Span<const std::byte> before,
                                            ElementWidth width) {
  WAYBILL_RETURN_IF_ERROR(CheckChunk(newest.size(), before.size(), width));
  return HWY_DYNAMIC_DISPATCH(EncodeChunk)(newest, before, width, nullptr);
}

}  // namespace waybill
#endif  // HWY_ONCE
