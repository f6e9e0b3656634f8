// SPDX-License-Identifier: Apache-2.0

#include "core/change/change_decoder.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "kernels/copy.h"

namespace waybill {
namespace {

static_assert(std::endian::native == std::endian::little, "Elements are stored as they lie.");

// Reads codes from the beginning of some bytes, upwards from the lowest bit of each byte. Behind
// the last byte there are zeros, so that only Finish() has to ask whether the bytes sufficed.
class BitReader {
 public:
  explicit BitReader(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  // Returns the next 57 bits or more, in the low bits.
  uint64_t Peek() const {
    const size_t at = position_ / 8;
    uint64_t word = 0;
    if (at + sizeof(word) <= bytes_.size()) {
      std::memcpy(&word, bytes_.data() + at, sizeof(word));
    } else if (at < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + at, bytes_.size() - at);
    }
    return word >> (position_ % 8);
  }

  void Skip(uint32_t bits) { position_ += bits; }

  // Returns true if more was read than there is.
  bool exceeded() const { return position_ > bytes_.size() * 8; }

  // Returns the bytes that were read, the last of which may be filled up with zeros.
  absl::StatusOr<size_t> Finish() const {
    const size_t used = (position_ + 7) / 8;
    if (used > bytes_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("codes take ", used, " bytes, of which ", bytes_.size(), " are left"));
    }
    if (position_ % 8 != 0) {
      const uint32_t fill = std::to_integer<uint32_t>(bytes_[used - 1]) >> (position_ % 8);
      if (fill != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("the last byte of codes is filled up with bits ", fill, "; only 0 is"));
      }
    }
    return used;
  }

 private:
  absl::Span<const std::byte> bytes_;
  size_t position_ = 0;  // In bits.
};

absl::Status IndexError(BitReader reader, size_t index, size_t element_count) {
  if (reader.exceeded()) return reader.Finish().status();
  return absl::InvalidArgumentError(
      absl::StrCat("element ", index, " changed; the block has ", element_count, " elements"));
}

absl::Status DistanceError(BitReader reader, size_t index, uint32_t zeros, uint32_t k) {
  if (reader.exceeded()) return reader.Finish().status();
  return absl::InvalidArgumentError(absl::StrCat("the distance of element ", index,
                                                 " is a code of ", zeros, " zeros with k = ", k,
                                                 ", which is too large for an element"));
}

// Decodes the blocks of a chunk.
template <typename T>
class BlockDecoder {
 public:
  explicit BlockDecoder(absl::Span<const std::byte> blocks) : left_(blocks), distances_(blocks) {}

  // Decodes the next block, and completes its elements in `target`.
  absl::Status Decode(const std::byte* before, std::byte* target, size_t element_count,
                      kernels::Stores stores);

  // Returns the bytes behind the blocks that were decoded.
  absl::Span<const std::byte> left() const { return left_; }

 private:
  static constexpr uint32_t kBits = sizeof(T) * 8;
  static constexpr size_t kPieceBytes = 4096;

  absl::Status DecodeHeader(size_t element_count);
  absl::Status DecodeGaps(size_t element_count);
  absl::Status DecodeRuns(size_t element_count);
  absl::Status BeginValues();
  absl::Status DecodeValues(std::byte* piece, size_t first, size_t end);
  absl::Status DecodeDistances(std::byte* piece, size_t first, size_t next_count);
  absl::Status EndValues();

  bool raw() const { return header_.value_code == BlockHeader::kRawValues; }

  absl::Span<const std::byte> left_;
  BlockHeader header_;
  size_t changed_count_ = 0;
  size_t done_count_ = 0;  // The number of changed elements that have their values.
  BitReader distances_;
  uint16_t indices_[kBlockElements];
  alignas(64) std::byte piece_[kPieceBytes];  // A part of a block that will be streamed.
};

template <typename T>
absl::Status BlockDecoder<T>::Decode(const std::byte* before, std::byte* target,
                                     size_t element_count, kernels::Stores stores) {
  WAYBILL_RETURN_IF_ERROR(DecodeHeader(element_count));
  const bool runs = header_.index_code == BlockHeader::kRuns;
  WAYBILL_RETURN_IF_ERROR(runs ? DecodeRuns(element_count) : DecodeGaps(element_count));
  const bool copies = target != before;
  if (changed_count_ == 0) {
    if (copies) kernels::CopyRun(target, before, element_count * sizeof(T), stores, kPieceBytes);
    return absl::OkStatus();
  }
  WAYBILL_RETURN_IF_ERROR(BeginValues());
  // A line that was streamed has left the cache, so what is streamed is completed in other memory,
  // a piece at a time.
  const bool streams = copies && stores == kernels::Stores::kStreaming;
  const size_t piece_elements = streams ? kPieceBytes / sizeof(T) : element_count;
  for (size_t first = 0; first < element_count; first += piece_elements) {
    const size_t end = std::min(first + piece_elements, element_count);
    const size_t offset = first * sizeof(T), size_bytes = (end - first) * sizeof(T);
    std::byte* const piece = streams ? piece_ : target + offset;
    if (copies) std::memcpy(piece, before + offset, size_bytes);
    WAYBILL_RETURN_IF_ERROR(DecodeValues(piece, first, end));
    if (!streams) continue;
    // Loads the next piece meanwhile: otherwise each piece would begin with waiting for memory.
    const uintptr_t next = reinterpret_cast<uintptr_t>(before) + offset + size_bytes;
    const uintptr_t ahead = next - reinterpret_cast<uintptr_t>(piece_);
    kernels::CopyRun(target + offset, piece_, size_bytes, stores, static_cast<ptrdiff_t>(ahead));
  }
  return EndValues();
}

template <typename T>
absl::Status BlockDecoder<T>::DecodeHeader(size_t element_count) {
  if (left_.size() < BlockHeader::kBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the block begins with ", left_.size(),
                                                   " bytes, of at least ", BlockHeader::kBytes));
  }
  uint32_t number = 0;
  std::memcpy(&number, left_.data(), BlockHeader::kBytes);
  left_.remove_prefix(BlockHeader::kBytes);
  header_ = BlockHeader::Unpack(number);
  if (header_.count > element_count || (header_.count == 0 && number != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(header_.count, " elements or runs changed, with codes ", header_.index_code,
                     " and ", header_.value_code, "; the block has ", element_count, " elements"));
  }
  if (header_.value_code > kBits - 2 && header_.value_code != BlockHeader::kRawValues) {
    return absl::InvalidArgumentError(absl::StrCat("the value code is ", header_.value_code,
                                                   "; allowed are 0 to ", kBits - 2, " and ",
                                                   BlockHeader::kRawValues));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status BlockDecoder<T>::DecodeGaps(size_t element_count) {
  changed_count_ = header_.count;
  const uint32_t k = header_.index_code;
  const uint32_t low_mask = (1u << k) - 1;
  BitReader reader(left_);
  size_t next = 0;
  for (size_t i = 0; i < changed_count_; ++i) {
    const uint64_t bits = reader.Peek();
    const uint32_t quotient = static_cast<uint32_t>(std::countr_zero(bits | 1u << kMostQuotient));
    size_t gap;
    if (quotient < kMostQuotient) {
      gap = quotient << k | (static_cast<uint32_t>(bits >> (quotient + 1)) & low_mask);
      reader.Skip(quotient + 1 + k);
    } else {
      gap = bits >> kMostQuotient & ((1u << kIndexBits) - 1);
      reader.Skip(kMostQuotient + kIndexBits);
    }
    const size_t index = next + gap;
    if (index >= element_count) return IndexError(reader, index, element_count);
    indices_[i] = static_cast<uint16_t>(index);
    next = index + 1;
  }
  WAYBILL_ASSIGN_OR_RETURN(const size_t used, reader.Finish());
  left_.remove_prefix(used);
  return absl::OkStatus();
}

template <typename T>
absl::Status BlockDecoder<T>::DecodeRuns(size_t element_count) {
  changed_count_ = 0;
  const size_t runs_bytes = header_.count * kRunBytes;
  if (runs_bytes > left_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("runs take ", runs_bytes, " bytes, of which ", left_.size(), " are left"));
  }
  size_t next = 0;
  for (size_t at = 0; at < runs_bytes; at += kRunBytes) {
    uint16_t run[2];
    std::memcpy(run, left_.data() + at, kRunBytes);
    const size_t begin = run[0], end = begin + run[1];
    if (begin < next || end == begin || end > element_count) {
      return absl::InvalidArgumentError(absl::StrCat("a run of elements [", begin, ", ", end,
                                                     ") behind element ", next, "; the block has ",
                                                     element_count, " elements"));
    }
    for (next = begin; next < end; ++next) indices_[changed_count_++] = static_cast<uint16_t>(next);
  }
  left_.remove_prefix(runs_bytes);
  return absl::OkStatus();
}

template <typename T>
absl::Status BlockDecoder<T>::BeginValues() {
  done_count_ = 0;
  distances_ = BitReader(left_);
  const size_t raw_bytes = changed_count_ * sizeof(T);
  if (!raw() || raw_bytes <= left_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("raw values take ", raw_bytes, " bytes, of which ", left_.size(), " are left"));
}

// Decodes the values of the changed elements in [first, end), which begin at `piece`.
template <typename T>
absl::Status BlockDecoder<T>::DecodeValues(std::byte* piece, size_t first, size_t end) {
  const uint16_t* const next =
      std::lower_bound(indices_ + done_count_, indices_ + changed_count_, end);
  const size_t next_count = static_cast<size_t>(next - indices_);
  if (!raw()) return DecodeDistances(piece, first, next_count);
  for (; done_count_ < next_count; ++done_count_) {
    std::memcpy(piece + (indices_[done_count_] - first) * sizeof(T),
                left_.data() + done_count_ * sizeof(T), sizeof(T));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status BlockDecoder<T>::DecodeDistances(std::byte* piece, size_t first, size_t next_count) {
  const uint32_t k = header_.value_code;
  BitReader reader = distances_;
  for (size_t i = done_count_; i < next_count; ++i) {
    uint64_t bits = reader.Peek();
    const uint32_t zeros = static_cast<uint32_t>(std::countr_zero(bits | uint64_t{1} << kBits));
    const uint32_t low_width = zeros + k;
    bits >>= zeros + 1;
    if constexpr (sizeof(T) == 4) {  // The longest code does not fit into one word.
      reader.Skip(zeros + 1);
      bits = reader.Peek();
      reader.Skip(low_width + 1);
    } else {
      reader.Skip(zeros + 1 + low_width + 1);
    }
    const uint64_t low = bits & ((uint64_t{1} << low_width) - 1);
    const uint64_t magnitude = low + (uint64_t{1} << low_width) - (uint64_t{1} << k);
    if (low_width > kBits - 1 || magnitude >> (kBits - 1) != 0) {
      return DistanceError(reader, indices_[i], zeros, k);
    }
    const uint64_t sign = bits >> low_width & 1;
    const uint64_t distance = (magnitude ^ (0 - sign)) + 1 - sign;
    std::byte* const element = piece + (indices_[i] - first) * sizeof(T);
    T value;
    std::memcpy(&value, element, sizeof(T));
    value = Order(static_cast<T>(Order(value) + distance));
    std::memcpy(element, &value, sizeof(T));
  }
  distances_ = reader;
  done_count_ = next_count;
  return absl::OkStatus();
}

template <typename T>
absl::Status BlockDecoder<T>::EndValues() {
  size_t used = changed_count_ * sizeof(T);
  if (!raw()) {
    WAYBILL_ASSIGN_OR_RETURN(used, distances_.Finish());
  }
  left_.remove_prefix(used);
  return absl::OkStatus();
}

template <typename T>
absl::Status ApplyBlocks(absl::Span<const std::byte> blocks, const std::byte* before,
                         absl::Span<std::byte> target, kernels::Stores stores) {
  const size_t element_count = target.size() / sizeof(T);
  BlockDecoder<T> decoder(blocks);
  for (size_t first = 0; first < element_count; first += kBlockElements) {
    const size_t offset = first * sizeof(T);
    absl::Status status = decoder.Decode(before + offset, target.data() + offset,
                                         std::min(kBlockElements, element_count - first), stores);
    if (!status.ok())
      return While(absl::StrCat("block ", first / kBlockElements), std::move(status));
  }
  if (decoder.left().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(decoder.left().size(), " bytes follow the last block; none are allowed"));
}

absl::Status Apply(absl::Span<const std::byte> encoding, absl::Span<const std::byte> before,
                   ElementWidth width, absl::Span<std::byte> target, kernels::Stores stores) {
  WAYBILL_RETURN_IF_ERROR(CheckChunk(target.size(), before.size(), width));
  if (encoding.empty()) {
    return absl::InvalidArgumentError("the encoding has 0 bytes, of at least 1");
  }
  const uint8_t first = std::to_integer<uint8_t>(encoding[0]);
  const absl::Span<const std::byte> rest = encoding.subspan(1);
  if (first == FirstByte(ChunkKind::kElements, width)) {
    switch (width) {
      case ElementWidth::kOne:
        return ApplyBlocks<uint8_t>(rest, before.data(), target, stores);
      case ElementWidth::kTwo:
        return ApplyBlocks<uint16_t>(rest, before.data(), target, stores);
      case ElementWidth::kFour:
        return ApplyBlocks<uint32_t>(rest, before.data(), target, stores);
    }
  }
  const bool unchanged = first == FirstByte(ChunkKind::kUnchanged, width);
  if (!unchanged && first != FirstByte(ChunkKind::kWhole, width)) {
    return absl::InvalidArgumentError(absl::StrCat("the first byte is 0x", absl::Hex(first),
                                                   "; 0x0, 0x1 and 0x1", static_cast<int>(width),
                                                   " are allowed"));
  }
  const size_t allowed = unchanged ? 0 : target.size();
  if (rest.size() != allowed) {
    return absl::InvalidArgumentError(absl::StrCat(rest.size(), " bytes follow the first byte 0x",
                                                   absl::Hex(first), "; ", allowed,
                                                   " are allowed"));
  }
  const std::byte* const source = unchanged ? before.data() : rest.data();
  if (source != target.data()) kernels::Copy(target.data(), source, target.size(), stores);
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyChanges(absl::Span<const std::byte> encoding, absl::Span<const std::byte> before,
                          ElementWidth width, absl::Span<std::byte> target,
                          kernels::Stores stores) {
  absl::Status status = Apply(encoding, before, width, target, stores);
  if (status.ok()) return status;
  return While(absl::StrCat("apply ", encoding.size(), " bytes of changes to a chunk of ",
                            target.size(), " bytes"),
               std::move(status));
}

}  // namespace waybill
