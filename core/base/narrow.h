// SPDX-License-Identifier: Apache-2.0

// Conversions between integer types that fail instead of losing bits.
#ifndef WAYBILL_CORE_BASE_NARROW_H_
#define WAYBILL_CORE_BASE_NARROW_H_

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace waybill {

// kOutOfRange where `value` does not fit into To.
template <std::integral To, std::integral From>
absl::StatusOr<To> Narrow(From value) {
  if (!std::in_range<To>(value)) {
    return absl::OutOfRangeError(absl::StrCat(value, " does not fit into [",
                                              std::numeric_limits<To>::min(), ", ",
                                              std::numeric_limits<To>::max(), "]"));
  }
  return static_cast<To>(value);
}

// Both return nullopt if the result does not fit. Use them for sizes that come from files and
// peers.
inline std::optional<uint64_t> CheckedMultiply(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// The smallest multiple of `alignment` (a power of two) that is not below `value`.
constexpr uint64_t RoundUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_NARROW_H_
