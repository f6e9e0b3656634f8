// SPDX-License-Identifier: Apache-2.0

// Memory as torch's expandable segments are: allocations of cuMemCreate(), mapped side by side.
#ifndef WAYBILL_TESTING_FAKE_CUDA_CREATED_MEMORY_H_
#define WAYBILL_TESTING_FAKE_CUDA_CREATED_MEMORY_H_

#include <cstddef>
#include <vector>

namespace waybill {

// Allocations of 2 MiB each. Aborts where the driver refuses.
class CreatedMemory {
 public:
  enum class Exportable { kYes, kNo };
  explicit CreatedMemory(size_t allocation_count, Exportable exportable = Exportable::kYes,
                         int device = 0);
  CreatedMemory(const CreatedMemory&) = delete;
  CreatedMemory& operator=(const CreatedMemory&) = delete;
  ~CreatedMemory();

  static constexpr size_t kAllocationBytes = size_t{2} << 20;
  std::byte* data() const { return data_; }
  size_t size_bytes() const { return allocation_count_ * kAllocationBytes; }

  // Gives the allocations back, as an engine that sleeps. The addresses stay reserved.
  void Unmap();
  // Gives the first allocation back, so that there is a hole.
  void UnmapFirst();
  // Maps new allocations there.
  void Map();
  // Maps an allocation of another device in place of the last one.
  void MapLastOn(int device);

 private:
  void UnmapOne(size_t i);
  void MapOne(size_t i, int device);

  const size_t allocation_count_;
  const Exportable exportable_;
  const int device_;
  std::byte* data_ = nullptr;
  size_t first_mapped_ = 0;  // Allocations before that are not mapped.
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_FAKE_CUDA_CREATED_MEMORY_H_
