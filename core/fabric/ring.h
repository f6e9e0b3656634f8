// SPDX-License-Identifier: Apache-2.0

// A queue that allocates only when it holds more than it ever held.
#ifndef WAYBILL_CORE_FABRIC_RING_H_
#define WAYBILL_CORE_FABRIC_RING_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace waybill {

template <typename T>
class Ring {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Counted from the front. It has to be there.
  T& operator[](size_t i) { return slots_[(begin_ + i) & (slots_.size() - 1)]; }
  const T& operator[](size_t i) const { return slots_[(begin_ + i) & (slots_.size() - 1)]; }

  void PushBack(T value) {
    if (size_ == slots_.size()) Grow();
    ++size_;
    (*this)[size_ - 1] = std::move(value);
  }
  T PopFront() {
    T value = std::move((*this)[0]);
    begin_ = (begin_ + 1) & (slots_.size() - 1);
    --size_;
    return value;
  }
  // Keeps the first `count`.
  void Truncate(size_t count) { size_ = count < size_ ? count : size_; }

 private:
  void Grow() {
    std::vector<T> larger(slots_.empty() ? 16 : 2 * slots_.size());  // A power of two.
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    begin_ = 0;
  }

  std::vector<T> slots_;
  size_t begin_ = 0;
  size_t size_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_RING_H_
