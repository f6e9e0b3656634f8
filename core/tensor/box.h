// SPDX-License-Identifier: Apache-2.0

// A half-open range of a tensor's index space in each of its dimensions.
#ifndef WAYBILL_CORE_TENSOR_BOX_H_
#define WAYBILL_CORE_TENSOR_BOX_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace waybill {

// The most dimensions of a tensor. No known model has a parameter of more than five.
inline constexpr int kMaxDimensions = 8;

// [begin, end) in each dimension, slowest first. A box of no dimensions holds one element.
class Box {
 public:
  Box() = default;

  // `begin` and `end` have the same length, which is at most kMaxDimensions.
  Box(absl::Span<const int64_t> begin, absl::Span<const int64_t> end);

  // All of a tensor of that shape.
  static Box Whole(absl::Span<const int64_t> shape);

  int dimensions() const { return dimensions_; }
  int64_t begin(int d) const { return begin_[static_cast<size_t>(d)]; }
  int64_t end(int d) const { return end_[static_cast<size_t>(d)]; }
  int64_t extent(int d) const { return end(d) - begin(d); }
  absl::Span<const int64_t> begins() const { return {begin_.data(), Size()}; }
  absl::Span<const int64_t> ends() const { return {end_.data(), Size()}; }

  // Narrows dimension d to [begin, end).
  void Set(int d, int64_t begin, int64_t end);

  bool empty() const;
  int64_t element_count() const;  // 0 where empty.
  bool Contains(const Box& other) const;
  bool operator==(const Box& other) const;
  template <typename H>
  friend H AbslHashValue(H hash, const Box& box) {
    return H::combine(std::move(hash), box.begins(), box.ends());
  }

 private:
  size_t Size() const { return static_cast<size_t>(dimensions_); }

  int dimensions_ = 0;
  std::array<int64_t, kMaxDimensions> begin_{};
  std::array<int64_t, kMaxDimensions> end_{};
};

// Returns the number of elements of a box that came from elsewhere, or nullopt if a bound is
// negative, an end lies before its begin, or the number does not fit into 62 bits.
std::optional<int64_t> CheckedElementCount(const Box& box);

// Returns an empty box if they do not meet. Both must have the same number of dimensions.
Box Intersect(const Box& a, const Box& b);

// Appends `box` without `hole` to `rest`, as disjoint boxes.
void Subtract(Box box, const Box& hole, std::vector<Box>& rest);

// Calls visit(index) for each element of the box, the last dimension fastest.
template <typename Visit>
void ForEachIndex(const Box& box, Visit visit) {
  if (box.empty()) return;
  std::array<int64_t, kMaxDimensions> at{};
  for (int d = 0; d < box.dimensions(); ++d) at[static_cast<size_t>(d)] = box.begin(d);
  while (true) {
    visit(absl::MakeConstSpan(at.data(), static_cast<size_t>(box.dimensions())));
    int d = box.dimensions() - 1;
    for (; d >= 0 && ++at[static_cast<size_t>(d)] == box.end(d); --d) {
      at[static_cast<size_t>(d)] = box.begin(d);
    }
    if (d < 0) return;
  }
}

// "[0, 512) x [128, 256)", or "scalar".
std::string ToString(const Box& box);

// "[512, 128]"
std::string ShapeToString(absl::Span<const int64_t> shape);

// Strides in elements of a dense array with the last dimension fastest.
void RowMajorStrides(absl::Span<const int64_t> shape, absl::Span<int64_t> strides);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_BOX_H_
