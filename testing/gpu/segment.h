// SPDX-License-Identifier: Apache-2.0

// Memory as torch's expandable segments are, of whatever driver there is.
#ifndef WAYBILL_TESTING_GPU_SEGMENT_H_
#define WAYBILL_TESTING_GPU_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace waybill {

// Allocations of cuMemCreate() on the first GPU that other processes may map, side by side.
class Segment {
 public:
  // At least `size_bytes` bytes in allocations of `part_bytes`, a multiple of 2 MiB. A context of
  // the GPU must be current, or a Device open.
  static absl::StatusOr<std::unique_ptr<Segment>> Create(uint64_t size_bytes, uint64_t part_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  // Puts other allocations under the same addresses, as an engine that sleeps and wakes.
  absl::Status Remap();

 private:
  explicit Segment(uint64_t count, uint64_t part_bytes) : count_(count), part_bytes_(part_bytes) {}
  absl::Status Map();
  void Unmap();

  const uint64_t count_;
  const uint64_t part_bytes_;
  std::byte* data_ = nullptr;
  uint64_t mapped_ = 0;  // The number of allocations that are mapped.
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_GPU_SEGMENT_H_
