// SPDX-License-Identifier: Apache-2.0

#include "kernels/changed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/changed.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "kernels/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements are compared in groups that fill one word of flags.
constexpr size_t kGroup = 64;
constexpr size_t kAlwaysStored = 3;

// Returns a word whose bit i tells whether elements i of two groups differ.
template <typename T>
HWY_INLINE uint64_t DifferingBits(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b) {
  const hn::CappedTag<T, kGroup> d;
  uint64_t differing = 0;
  for (size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
    uint64_t lanes = 0;
    const auto unequal = hn::Ne(hn::LoadU(d, a + i), hn::LoadU(d, b + i));
    hn::StoreMaskBits(d, unequal, reinterpret_cast<uint8_t*>(&lanes));
    differing |= lanes << i;
  }
  return differing;
}

template <typename T>
size_t FindChangedOf(const void* newest, const void* before, size_t count, uint16_t* indices) {
  const T* a = static_cast<const T*>(newest);
  const T* b = static_cast<const T*>(before);
  size_t found = 0, at = 0;
  for (; at + kGroup <= count; at += kGroup) {
    for (size_t line = 0; line < kGroup * sizeof(T); line += kCacheLineBytes) {
      PrefetchFar(reinterpret_cast<const std::byte*>(a + at) + kFarBytes + line);
      PrefetchFar(reinterpret_cast<const std::byte*>(b + at) + kFarBytes + line);
    }
    // The first indices are stored whether there are so many or not: a branch on a few random
    // changes would often be predicted wrongly. There is room, because found is at most at.
    uint64_t left = DifferingBits(a + at, b + at);
    const size_t end = found + static_cast<size_t>(std::popcount(left));
    for (size_t i = 0; i < kAlwaysStored; ++i, left &= left - 1) {
      indices[found + i] = static_cast<uint16_t>(at + static_cast<size_t>(std::countr_zero(left)));
    }
    for (found += kAlwaysStored; found < end; ++found, left &= left - 1) {
      indices[found] = static_cast<uint16_t>(at + static_cast<size_t>(std::countr_zero(left)));
    }
    found = end;
  }
  for (; at < count; ++at) {
    if (std::memcmp(a + at, b + at, sizeof(T)) != 0) indices[found++] = static_cast<uint16_t>(at);
  }
  return found;
}

size_t FindChanged(const void* newest, const void* before, size_t count, size_t element_bytes,
                   uint16_t* indices) {
  if (element_bytes == 1) return FindChangedOf<uint8_t>(newest, before, count, indices);
  if (element_bytes == 2) return FindChangedOf<uint16_t>(newest, before, count, indices);
  return FindChangedOf<uint32_t>(newest, before, count, indices);
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(FindChanged);

size_t FindChanged(const void* newest, const void* before, size_t count, size_t element_bytes,
                   uint16_t* indices) {
  return HWY_DYNAMIC_DISPATCH(FindChanged)(newest, before, count, element_bytes, indices);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
