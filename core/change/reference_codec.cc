// SPDX-License-Identifier: Apache-2.0

#include "core/change/reference_codec.h"

#include <algorithm>
#include <utility>

namespace waybill::reference {
namespace {

constexpr size_t kBlockElements = 16384;

using Elements = std::vector<uint64_t>;

Elements ToElements(const Bytes& bytes, size_t element_bytes) {
  Elements elements(bytes.size() / element_bytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    elements[i / element_bytes] |= uint64_t{bytes[i]} << (8 * (i % element_bytes));
  }
  return elements;
}

void AppendNumber(Bytes& bytes, uint64_t number, size_t size_bytes) {
  for (size_t i = 0; i < size_bytes; ++i) bytes.push_back(static_cast<uint8_t>(number >> (8 * i)));
}

void Append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

uint32_t Length(uint64_t x) {
  uint32_t digits = 0;
  for (; x != 0; x >>= 1) ++digits;
  return digits;
}

uint64_t Order(uint64_t bits, uint32_t w) {
  const uint64_t sign = uint64_t{1} << (w - 1);
  return (bits & sign) != 0 ? bits ^ (sign - 1) : bits;
}

// Bits, from the lowest one of each byte upwards.
class BitString {
 public:
  void Put(uint64_t number, uint32_t width) {
    for (uint32_t i = 0; i < width; ++i) bits_.push_back((number >> i & 1) != 0);
  }
  Bytes ToBytes() const {
    Bytes bytes((bits_.size() + 7) / 8);
    for (size_t i = 0; i < bits_.size(); ++i) bytes[i / 8] |= bits_[i] ? 1 << (i % 8) : 0;
    return bytes;
  }

 private:
  std::vector<bool> bits_;
};

// Returns the smallest k for which at least `numerator` / `denominator` of the values are below
// 2^k.
uint32_t SmallestK(const std::vector<uint64_t>& values, size_t numerator, size_t denominator) {
  for (uint32_t k = 0;; ++k) {
    const auto below = std::count_if(values.begin(), values.end(),
                                     [k](uint64_t value) { return value < uint64_t{1} << k; });
    if (static_cast<size_t>(below) * denominator >= values.size() * numerator) return k;
  }
}

struct Part {
  uint32_t count;
  uint32_t code;
  Bytes bytes;
};

Part EncodeIndices(const std::vector<size_t>& indices) {
  std::vector<uint64_t> gaps;
  std::vector<std::pair<size_t, size_t>> runs;  // First element and length.
  for (size_t i = 0; i < indices.size(); ++i) {
    const size_t next = i == 0 ? 0 : indices[i - 1] + 1;
    gaps.push_back(indices[i] - next);
    if (i == 0 || indices[i] != next) runs.emplace_back(indices[i], 0);
    ++runs.back().second;
  }
  const uint32_t k = SmallestK(gaps, 3, 8);
  BitString bits;
  for (const uint64_t gap : gaps) {
    const uint64_t q = gap >> k;
    if (q < 16) {
      bits.Put(0, static_cast<uint32_t>(q));
      bits.Put(1, 1);
      bits.Put(gap, k);
    } else {
      bits.Put(0, 16);
      bits.Put(gap, 14);
    }
  }
  Bytes run_bytes;
  for (const auto& [first, length] : runs) {
    AppendNumber(run_bytes, first, 2);
    AppendNumber(run_bytes, length, 2);
  }
  const Bytes gap_bytes = bits.ToBytes();
  if (run_bytes.size() < gap_bytes.size()) {
    return {static_cast<uint32_t>(runs.size()), 15, run_bytes};
  }
  return {static_cast<uint32_t>(gaps.size()), k, gap_bytes};
}

Part EncodeValues(const std::vector<size_t>& indices, const Elements& newest,
                  const Elements& before, size_t first, size_t element_bytes) {
  const uint32_t w = static_cast<uint32_t>(8 * element_bytes);
  const uint64_t modulus = uint64_t{1} << w;
  std::vector<uint64_t> magnitudes;
  std::vector<bool> signs;
  Bytes raw;
  for (const size_t index : indices) {
    const uint64_t now = newest[first + index], then = before[first + index];
    const uint64_t d = (Order(now, w) + modulus - Order(then, w)) % modulus;
    const bool negative = d >= modulus / 2;
    magnitudes.push_back((negative ? modulus - d : d) - 1);
    signs.push_back(negative);
    AppendNumber(raw, now, element_bytes);
  }
  const uint32_t k = SmallestK(magnitudes, 1, 2);
  BitString bits;
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    const uint64_t x = magnitudes[i] + (uint64_t{1} << k);
    const uint32_t z = Length(x) - 1 - k;
    bits.Put(0, z);
    bits.Put(1, 1);
    bits.Put(x, z + k);
    bits.Put(signs[i] ? 1 : 0, 1);
  }
  const Bytes distances = bits.ToBytes();
  if (distances.size() < raw.size()) return {0, k, distances};
  return {0, 31, raw};
}

// Reads what BitString and AppendNumber() wrote.
class Reader {
 public:
  explicit Reader(const Bytes& bytes) : bytes_(bytes) {}

  // Reads 0 behind the end, which failed() tells.
  uint64_t Take(uint32_t width) {
    uint64_t number = 0;
    for (uint32_t i = 0; i < width; ++i, ++position_) {
      if (position_ >= bytes_.size() * 8) {
        failed_ = true;
      } else {
        number |= (uint64_t{bytes_[position_ / 8]} >> (position_ % 8) & 1) << i;
      }
    }
    return number;
  }
  void EndByte() {
    while (position_ % 8 != 0) failed_ = Take(1) != 0 || failed_;
  }
  // Counts zeros before a one, which it takes too; at most `most`, without a one then.
  uint32_t TakeZeros(uint32_t most) {
    uint32_t zeros = 0;
    while (zeros < most && Take(1) == 0) ++zeros;
    return zeros;
  }
  bool failed() const { return failed_; }
  bool AtEnd() const { return position_ == bytes_.size() * 8; }

 private:
  const Bytes& bytes_;
  size_t position_ = 0;
  bool failed_ = false;
};

std::optional<std::vector<size_t>> DecodeIndices(Reader& reader, uint32_t count, uint32_t code,
                                                 size_t element_count) {
  std::vector<size_t> indices;
  size_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    size_t length = 1;
    size_t first;
    if (code == 15) {
      first = reader.Take(16);
      length = reader.Take(16);
      if (first < next || length == 0) return std::nullopt;
    } else {
      const uint64_t q = reader.TakeZeros(16);
      first = next + (q < 16 ? q << code | reader.Take(code) : reader.Take(14));
    }
    if (first + length > element_count) return std::nullopt;
    for (next = first; next < first + length; ++next) indices.push_back(next);
  }
  reader.EndByte();
  return indices;
}

// Returns the newest bits of an element.
std::optional<uint64_t> DecodeValue(Reader& reader, uint32_t code, uint64_t before, uint32_t w) {
  if (code == 31) return reader.Take(w);
  const uint64_t modulus = uint64_t{1} << w;
  const uint32_t z = reader.TakeZeros(w);
  if (z + code > w - 1) return std::nullopt;
  const uint64_t x = uint64_t{1} << (z + code) | reader.Take(z + code);
  const uint64_t m = x - (uint64_t{1} << code);
  if (m > modulus / 2 - 1) return std::nullopt;
  const uint64_t d = reader.Take(1) != 0 ? modulus - (m + 1) : m + 1;
  return Order((Order(before, w) + d) % modulus, w);
}

}  // namespace

Bytes EncodeChanges(const Bytes& newest, const Bytes& before, size_t element_bytes) {
  if (newest == before) return {0x00};
  const Elements now = ToElements(newest, element_bytes), then = ToElements(before, element_bytes);
  Bytes encoding = {static_cast<uint8_t>(0x10 | element_bytes)};
  for (size_t first = 0; first < now.size(); first += kBlockElements) {
    std::vector<size_t> changed;
    for (size_t i = 0; i < std::min(kBlockElements, now.size() - first); ++i) {
      if (now[first + i] != then[first + i]) changed.push_back(i);
    }
    if (changed.empty()) {
      AppendNumber(encoding, 0, 3);
      continue;
    }
    const Part indices = EncodeIndices(changed);
    const Part values = EncodeValues(changed, now, then, first, element_bytes);
    AppendNumber(encoding, indices.count | indices.code << 15 | values.code << 19, 3);
    Append(encoding, indices.bytes);
    Append(encoding, values.bytes);
  }
  if (encoding.size() < 1 + newest.size()) return encoding;
  Bytes whole = {0x01};
  Append(whole, newest);
  return whole;
}

std::optional<Bytes> ApplyChanges(const Bytes& encoding, const Bytes& before,
                                  size_t element_bytes) {
  if (encoding == Bytes{0x00}) return before;
  if (encoding.empty()) return std::nullopt;
  if (encoding[0] == 0x01 && encoding.size() == 1 + before.size()) {
    return Bytes(encoding.begin() + 1, encoding.end());
  }
  if (encoding[0] != (0x10 | element_bytes)) return std::nullopt;
  const uint32_t w = static_cast<uint32_t>(8 * element_bytes);
  const Elements then = ToElements(before, element_bytes);
  Elements now = then;
  Reader reader(encoding);
  reader.Take(8);
  for (size_t first = 0; first < then.size(); first += kBlockElements) {
    const uint32_t count = static_cast<uint32_t>(reader.Take(15));
    const uint32_t index_code = static_cast<uint32_t>(reader.Take(4));
    const uint32_t value_code = static_cast<uint32_t>(reader.Take(5));
    if (count == 0 && (index_code != 0 || value_code != 0)) return std::nullopt;
    if (value_code > w - 2 && value_code != 31) return std::nullopt;
    const auto changed =
        DecodeIndices(reader, count, index_code, std::min(kBlockElements, then.size() - first));
    if (!changed.has_value()) return std::nullopt;
    for (const size_t i : *changed) {
      const auto value = DecodeValue(reader, value_code, then[first + i], w);
      if (!value.has_value() || reader.failed()) return std::nullopt;
      now[first + i] = *value;
    }
    reader.EndByte();
    if (reader.failed()) return std::nullopt;
  }
  if (!reader.AtEnd()) return std::nullopt;
  Bytes newest;
  for (const uint64_t element : now) AppendNumber(newest, element, element_bytes);
  return newest;
}

}  // namespace waybill::reference
