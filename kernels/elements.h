// The element types that quantisation goes between.

#ifndef KERNELS_ELEMENTS_H_
#define KERNELS_ELEMENTS_H_

#include <cstddef>
#include <cstdint>

namespace waybill::kernels {

// What is quantised.
enum class Wide : uint8_t { kF32, kF16, kBf16 };

// What it becomes: the 8-bit floats of the Open Compute Project. E4M3 is the one that others call
// E4M3FN: it has no infinities, and one NaN of each sign. E5M2 is as IEEE 754 would have it.
enum class Narrow : uint8_t { kE4m3, kE5m2 };

constexpr size_t SizeBytes(Wide type) { return type == Wide::kF32 ? 4 : 2; }

// The largest finite magnitude.
constexpr float LargestOf(Narrow type) { return type == Narrow::kE4m3 ? 448.0F : 57344.0F; }

}  // namespace waybill::kernels

#endif  // KERNELS_ELEMENTS_H_
