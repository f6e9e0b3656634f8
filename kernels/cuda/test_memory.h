// SPDX-License-Identifier: Apache-2.0

// The memory on which kernels are tested: a GPU's, or the host's if the host runs the kernels.

#ifndef KERNELS_CUDA_TEST_MEMORY_H_
#define KERNELS_CUDA_TEST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/driver.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels::cuda {

// Each test program has its own.
class TestMemory {
 public:
  virtual ~TestMemory() = default;

  // Returns why it cannot be used here, or an empty text.
  virtual std::string Reason() = 0;
  virtual void* Allocate(size_t size_bytes) = 0;
  virtual void Free(void* memory) = 0;
  virtual void Write(void* to, const void* from, size_t size_bytes) = 0;
  // Waits for all queued work.
  virtual void Read(void* to, const void* from, size_t size_bytes) = 0;
  virtual Stream stream() = 0;
};
TestMemory& TheMemory();

// Bytes there, `skew_bytes` past a multiple of 64, with guards on either side.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size_bytes, size_t skew_bytes = 0)
      : size_bytes_(size_bytes),
        begin_(kGuardBytes + skew_bytes),
        storage_(TheMemory().Allocate(size_bytes + skew_bytes + 2 * kGuardBytes)) {
    const std::vector<uint8_t> guards(size_bytes + skew_bytes + 2 * kGuardBytes, kGuard);
    TheMemory().Write(storage_, guards.data(), guards.size());
  }
  DeviceBytes(const void* from, size_t size_bytes, size_t skew_bytes = 0)
      : DeviceBytes(size_bytes, skew_bytes) {
    if (size_bytes != 0) TheMemory().Write(data(), from, size_bytes);
  }
  explicit DeviceBytes(const SkewedBytes& bytes)
      : DeviceBytes(bytes.data(), bytes.size(), reinterpret_cast<uintptr_t>(bytes.data()) % 64) {}
  ~DeviceBytes() { TheMemory().Free(storage_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(storage_) + begin_; }
  float* floats() const { return reinterpret_cast<float*>(data()); }

  std::vector<uint8_t> Read() const {
    std::vector<uint8_t> bytes(size_bytes_);
    if (size_bytes_ != 0) TheMemory().Read(bytes.data(), data(), size_bytes_);
    return bytes;
  }

  bool GuardsHold() const {
    std::vector<uint8_t> all(size_bytes_ + begin_ + kGuardBytes);
    TheMemory().Read(all.data(), storage_, all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if ((i < begin_ || i >= begin_ + size_bytes_) && all[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr uint8_t kGuard = 0xa5;
  size_t size_bytes_;
  size_t begin_;
  void* storage_;
};

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_TEST_MEMORY_H_
