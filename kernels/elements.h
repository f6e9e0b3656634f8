// SPDX-License-Identifier: Apache-2.0

// Element types that the kernels compute with.

#ifndef KERNELS_ELEMENTS_H_
#define KERNELS_ELEMENTS_H_

#include <cstddef>
#include <cstdint>

namespace waybill::kernels {

// What is quantised, and cast.
enum class Wide : uint8_t { kF32, kF16, kBf16 };

// What it is quantised to: the 8-bit floats of the Open Compute Project. E4M3, also called E4M3FN,
// has no infinities and one NaN of each sign. E5M2 follows the rules of IEEE 754.
enum class Narrow : uint8_t { kE4m3, kE5m2 };

constexpr size_t SizeBytes(Wide type) { return type == Wide::kF32 ? 4 : 2; }

// The casts that there are.
enum class Cast : uint8_t { kF32ToBf16, kF32ToF16, kBf16ToF32, kF16ToF32, kBf16ToF16 };

constexpr Wide SourceOf(Cast cast) {
  if (cast == Cast::kBf16ToF32 || cast == Cast::kBf16ToF16) return Wide::kBf16;
  return cast == Cast::kF16ToF32 ? Wide::kF16 : Wide::kF32;
}

constexpr Wide DestinationOf(Cast cast) {
  if (cast == Cast::kF32ToBf16) return Wide::kBf16;
  return cast == Cast::kF32ToF16 || cast == Cast::kBf16ToF16 ? Wide::kF16 : Wide::kF32;
}

// Returns the largest finite magnitude.
constexpr float LargestOf(Narrow type) { return type == Narrow::kE4m3 ? 448.0F : 57344.0F; }

}  // namespace waybill::kernels

#endif  // KERNELS_ELEMENTS_H_
