// SPDX-License-Identifier: Apache-2.0

// Writes values as little-endian bytes, one after the other, and reads them with bounds checks.
#ifndef WAYBILL_CORE_PLAN_BYTE_CODEC_H_
#define WAYBILL_CORE_PLAN_BYTE_CODEC_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace waybill {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

template <typename T>
void AppendBytes(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : bytes_(bytes) {}

  // Returns false if fewer bytes are left.
  template <typename T>
  bool Read(T& value) {
    if (bytes_.size() < sizeof(value)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return true;
  }
  size_t left() const { return bytes_.size(); }
  absl::string_view rest() const { return bytes_; }

 private:
  absl::string_view bytes_;
};

// Appends a column of numbers as the differences between neighbours. A small difference takes few
// bytes. Regular columns give regular bytes, which compress well.
template <typename T>
void AppendColumn(std::string& out, const std::vector<T>& column) {
  constexpr size_t kMostBytes = 10;  // The longest encoding of a number.
  const size_t begin = out.size();
  out.resize(begin + column.size() * kMostBytes);
  char* at = out.data() + begin;
  uint64_t before = 0;
  for (const T& value : column) {
    const uint64_t step = static_cast<uint64_t>(value) - std::exchange(before, uint64_t(value));
    // Zigzag: small negative steps are small numbers too.
    uint64_t bits = step << 1 ^ (step >> 63 != 0 ? ~uint64_t{0} : 0);
    for (; bits >= 0x80; bits >>= 7) *at++ = static_cast<char>(bits | 0x80);
    *at++ = static_cast<char>(bits);
  }
  out.resize(static_cast<size_t>(at - out.data()));
}

// Reads a column into `column`, which must have the size of the appended column. Returns false if
// bytes are missing, or a number does not fit T.
template <typename T>
bool ReadColumn(ByteReader& reader, std::vector<T>& column) {
  uint64_t before = 0;
  for (T& value : column) {
    uint64_t bits = 0;
    uint8_t byte = 0x80;
    for (int shift = 0; (byte & 0x80) != 0; shift += 7) {
      if (shift > 63 || !reader.Read(byte)) return false;
      bits |= uint64_t{byte & 0x7Fu} << shift;
    }
    before += bits >> 1 ^ ((bits & 1) != 0 ? ~uint64_t{0} : 0);
    value = static_cast<T>(before);
    if (static_cast<uint64_t>(value) != before) return false;
  }
  return true;
}

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BYTE_CODEC_H_
