// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/box.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace waybill {

Box::Box(absl::Span<const int64_t> begin, absl::Span<const int64_t> end)
    : dimensions_(static_cast<int>(begin.size())) {
  assert(begin.size() == end.size() && begin.size() <= kMaxDimensions);
  std::copy(begin.begin(), begin.end(), begin_.begin());
  std::copy(end.begin(), end.end(), end_.begin());
}

Box Box::Whole(absl::Span<const int64_t> shape) {
  const std::array<int64_t, kMaxDimensions> zeros{};
  return Box({zeros.data(), shape.size()}, shape);
}

void Box::Set(int d, int64_t begin, int64_t end) {
  begin_[static_cast<size_t>(d)] = begin;
  end_[static_cast<size_t>(d)] = end;
}

bool Box::empty() const {
  for (int d = 0; d < dimensions_; ++d) {
    if (end(d) <= begin(d)) return true;
  }
  return false;
}

int64_t Box::element_count() const {
  if (empty()) return 0;
  int64_t count = 1;
  for (int d = 0; d < dimensions_; ++d) count *= extent(d);
  return count;
}

bool Box::Contains(const Box& other) const {
  if (other.dimensions_ != dimensions_) return false;
  if (other.empty()) return true;
  for (int d = 0; d < dimensions_; ++d) {
    if (other.begin(d) < begin(d) || other.end(d) > end(d)) return false;
  }
  return true;
}

bool Box::operator==(const Box& other) const {
  return begins() == other.begins() && ends() == other.ends();
}

std::optional<int64_t> CheckedElementCount(const Box& box) {
  int64_t count = 1;
  bool fits = true;
  for (int d = 0; d < box.dimensions(); ++d) {
    if (box.begin(d) < 0 || box.end(d) < box.begin(d)) return std::nullopt;
    // If a box is empty, its other extents may have any size.
    fits = !__builtin_mul_overflow(count, box.extent(d), &count) && fits;
  }
  if (box.empty()) return 0;
  if (!fits || count >= int64_t{1} << 62) return std::nullopt;
  return count;
}

Box Intersect(const Box& a, const Box& b) {
  assert(a.dimensions() == b.dimensions());
  Box both = a;
  for (int d = 0; d < a.dimensions(); ++d) {
    both.Set(d, std::max(a.begin(d), b.begin(d)), std::min(a.end(d), b.end(d)));
  }
  return both;
}

void Subtract(Box box, const Box& hole, std::vector<Box>& rest) {
  if (Intersect(box, hole).empty()) {
    if (!box.empty()) rest.push_back(box);
    return;
  }
  for (int d = 0; d < box.dimensions(); ++d) {
    if (hole.begin(d) > box.begin(d)) {
      Box before = box;
      before.Set(d, box.begin(d), hole.begin(d));
      rest.push_back(before);
    }
    if (hole.end(d) < box.end(d)) {
      Box after = box;
      after.Set(d, hole.end(d), box.end(d));
      rest.push_back(after);
    }
    box.Set(d, std::max(box.begin(d), hole.begin(d)), std::min(box.end(d), hole.end(d)));
  }
}

std::string ToString(const Box& box) {
  if (box.dimensions() == 0) return "scalar";
  std::string text;
  for (int d = 0; d < box.dimensions(); ++d) {
    absl::StrAppend(&text, d == 0 ? "" : " x ", "[", box.begin(d), ", ", box.end(d), ")");
  }
  return text;
}

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

void RowMajorStrides(absl::Span<const int64_t> shape, absl::Span<int64_t> strides) {
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
}

}  // namespace waybill
