// SPDX-License-Identifier: Apache-2.0

#include "testing/allocations/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting = false;
std::atomic<uint64_t> allocations = 0;

void* Counted(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  // A multiple of the alignment, as aligned_alloc() wants it.
  const std::size_t rounded = (size + alignment) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  std::abort();
}

}  // namespace

void* operator new(std::size_t size) { return Counted(size); }
void* operator new[](std::size_t size) { return Counted(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Counted(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return Counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace waybill {

void BeginCountingAllocations() {
  allocations = 0;
  counting = true;
}

uint64_t EndCountingAllocations() {
  counting = false;
  return allocations;
}

}  // namespace waybill
