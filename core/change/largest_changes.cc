// SPDX-License-Identifier: Apache-2.0

#include "core/change/largest_changes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>

#include "kernels/cast.h"

namespace waybill {
namespace {

constexpr uint32_t kLargest = 0x7FFF'FFFF;
// A relative change is at most 2, so its exponent and 3 more bits tell 1,025 classes apart.
constexpr int kClassShift = 20;
constexpr size_t kClasses = (kLargest >> kClassShift) + 1;

void Widen(kernels::Wide type, const std::byte* from, float* to, size_t elements) {
  if (type == kernels::Wide::kF32) {
    std::memcpy(to, from, elements * sizeof(float));
    return;
  }
  kernels::CastElements(
      type == kernels::Wide::kF16 ? kernels::Cast::kF16ToF32 : kernels::Cast::kBf16ToF32, to, from,
      elements, kernels::Stores::kCached, nullptr);
}

// Without branches, so that the compiler computes several at a time. A NaN is larger by its bits
// than any number. It comes of a NaN or an infinity, or of two zeros of different signs.
uint32_t ChangeOf(float newest, float before) {
  const auto n = std::bit_cast<uint32_t>(newest), b = std::bit_cast<uint32_t>(before);
  const auto newest_size = std::bit_cast<float>(n & kLargest);
  const auto before_size = std::bit_cast<float>(b & kLargest);
  const float larger = newest_size > before_size ? newest_size : before_size;
  const uint32_t change = std::bit_cast<uint32_t>((newest - before) / larger) & kLargest;
  const bool smallest = change == 0 || ((n | b) & kLargest) == 0;
  return n == b ? 0 : smallest ? 1 : change;
}

}  // namespace

LargestChanges::LargestChanges()
    : newest_(kBlockElements), before_(kBlockElements), changes_(kBlockElements) {
  candidates_.reserve(kBlockElements);
}

void LargestChanges::RankChanges(kernels::Wide type, const std::byte* newest,
                                 const std::byte* image, size_t elements) {
  Widen(type, newest, newest_.data(), elements);
  Widen(type, image, before_.data(), elements);
  changes_.resize(elements);
  for (size_t i = 0; i < elements; ++i) changes_[i] = ChangeOf(newest_[i], before_[i]);
}

// Returns the least of the `most` largest changes. More than `most` elements have changed.
uint32_t LargestChanges::FindLeast(size_t most) {
  std::array<uint32_t, kClasses> counts{};
  for (const uint32_t change : changes_) ++counts[change >> kClassShift];
  uint32_t least_class = kClasses - 1;
  size_t above = 0;
  while (above + counts[least_class] < most) above += counts[least_class--];
  candidates_.clear();
  for (const uint32_t change : changes_) {
    if (change >> kClassShift == least_class) candidates_.push_back(change);
  }
  const auto least = candidates_.begin() + static_cast<std::ptrdiff_t>(most - above - 1);
  std::nth_element(candidates_.begin(), least, candidates_.end(), std::greater<>());
  return *least;
}

uint64_t LargestChanges::Take(kernels::Wide type, const std::byte* newest, std::byte* image,
                              size_t elements, size_t most) {
  RankChanges(type, newest, image, elements);
  const auto changed =
      elements - static_cast<size_t>(std::count(changes_.begin(), changes_.end(), 0U));
  const size_t width = kernels::SizeBytes(type);
  if (changed <= most) {
    std::memcpy(image, newest, elements * width);
    return 0;
  }
  if (most == 0) return changed;
  const uint32_t least = FindLeast(most);
  const auto larger = std::count_if(changes_.begin(), changes_.end(),
                                    [&](uint32_t change) { return change > least; });
  size_t equal = most - static_cast<size_t>(larger);
  for (size_t i = 0; i < elements; ++i) {
    if (changes_[i] < least || (changes_[i] == least && equal == 0)) continue;
    equal -= changes_[i] == least ? 1 : 0;
    std::memcpy(image + i * width, newest + i * width, width);
  }
  return changed - most;
}

}  // namespace waybill
