// The element types of quantisation.

#ifndef KERNELS_ELEMENTS_H_
#define KERNELS_ELEMENTS_H_

#include <cstddef>
#include <cstdint>

namespace waybill::kernels {

// The source types.
enum class Wide : uint8_t { kF32, kF16, kBf16 };

// The destination types: the 8-bit floats of the Open Compute Project. E4M3, also called E4M3FN,
// has no infinities and one NaN of each sign. E5M2 follows the rules of IEEE 754.
enum class Narrow : uint8_t { kE4m3, kE5m2 };

constexpr size_t SizeBytes(Wide type) { return type == Wide::kF32 ? 4 : 2; }

// Returns the largest finite magnitude.
constexpr float LargestOf(Narrow type) { return type == Narrow::kE4m3 ? 448.0F : 57344.0F; }

}  // namespace waybill::kernels

#endif  // KERNELS_ELEMENTS_H_
