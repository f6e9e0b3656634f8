// SPDX-License-Identifier: Apache-2.0

// Bytes for tests: fixed patterns, and buffers at a given distance from a cache line.

#ifndef KERNELS_TEST_BYTES_H_
#define KERNELS_TEST_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace waybill::kernels {

// Returns the pattern "mix" of golden/digest_vectors.py.
inline uint8_t MixByte(uint64_t i) { return static_cast<uint8_t>(i * 0x9e3779b97f4a7c15 >> 56); }

// A buffer of `size_bytes`, `skew_bytes` past a multiple of 64, with 64 guard bytes on either side.
class SkewedBytes {
 public:
  explicit SkewedBytes(size_t size_bytes, size_t skew_bytes = 0)
      : storage_(size_bytes + skew_bytes + 3 * kGuardBytes, kGuard), size_bytes_(size_bytes) {
    const uintptr_t base = reinterpret_cast<uintptr_t>(storage_.data());
    begin_ = (kGuardBytes - base % kGuardBytes) + kGuardBytes + skew_bytes;
  }

  static SkewedBytes Mixed(size_t size_bytes, size_t skew_bytes = 0) {
    SkewedBytes bytes(size_bytes, skew_bytes);
    for (size_t i = 0; i < size_bytes; ++i) bytes.data()[i] = MixByte(i);
    return bytes;
  }

  uint8_t* data() { return storage_.data() + begin_; }
  const uint8_t* data() const { return storage_.data() + begin_; }
  size_t size() const { return size_bytes_; }

  // Returns true if nothing was written outside of the buffer.
  bool GuardsHold() const {
    for (size_t i = 0; i < storage_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + size_bytes_) && storage_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr uint8_t kGuard = 0xa5;
  std::vector<uint8_t> storage_;
  size_t size_bytes_;
  size_t begin_;
};

}  // namespace waybill::kernels

#endif  // KERNELS_TEST_BYTES_H_
