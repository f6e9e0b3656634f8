// SPDX-License-Identifier: Apache-2.0

// Inputs for tests of quantisation, as golden/quantise_vectors.py makes them, and its hash.

#ifndef KERNELS_QUANTISE_INPUTS_H_
#define KERNELS_QUANTISE_INPUTS_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/elements.h"
#include "kernels/scalar.h"
#include "kernels/scalar_elements.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {

// FNV-1a.
inline uint64_t Fnv(const void* data, size_t size_bytes) {
  uint64_t value = 0xcbf29ce484222325;
  for (size_t i = 0; i < size_bytes; ++i) {
    value = (value ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3;
  }
  return value;
}

// Returns every pattern of 16 bits, or for 32 bits every upper half with a few lower halves. Begins
// `skew` elements past a cache line.
inline SkewedBytes AllInputs(Wide type, size_t skew = 0) {
  if (type != Wide::kF32) {
    SkewedBytes bytes(65536 * 2, skew * 2);
    for (uint32_t i = 0; i < 65536; ++i) reinterpret_cast<uint16_t*>(bytes.data())[i] = i;
    return bytes;
  }
  constexpr uint32_t kLows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  SkewedBytes bytes(65536 * 6 * 4, skew * 4);
  uint32_t* to = reinterpret_cast<uint32_t*>(bytes.data());
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : kLows) *to++ = high << 16 | low;
  }
  return bytes;
}

// Returns values of all magnitudes between 2^-46 and 2^-7, and some zeros.
inline SkewedBytes MatrixOf(Wide type, size_t count, uint64_t seed, size_t skew = 0) {
  SkewedBytes bytes(count * SizeBytes(type), skew * SizeBytes(type));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t u = scalar::Mix(i + (seed << 32));
    const int64_t mantissa = static_cast<int64_t>(u >> 40) - (1 << 23);
    double value = std::ldexp(static_cast<double>(mantissa), -30 - static_cast<int>(u & 15));
    if ((u >> 4) % 64 == 0) value = 0;
    scalar::StoreWide(bytes.data() + i * SizeBytes(type), static_cast<float>(value), type);
  }
  return bytes;
}

}  // namespace waybill::kernels

#endif  // KERNELS_QUANTISE_INPUTS_H_
