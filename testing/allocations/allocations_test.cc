// SPDX-License-Identifier: Apache-2.0

#include "testing/allocations/allocations.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <thread>

namespace waybill {
namespace {

TEST(Allocations, OnesOfAnyThreadAreCountedAndNoOthers) {
  void* volatile before = ::operator new(8);  // Volatile: not to be left out.
  BeginCountingAllocations();
  EXPECT_EQ(EndCountingAllocations(), 0u);
  BeginCountingAllocations();
  std::thread([] {
    void* volatile memory = ::operator new(8);
    ::operator delete(memory);
  }).join();
  const uint64_t with_a_thread = EndCountingAllocations();
  void* volatile after = ::operator new(8);
  EXPECT_GE(with_a_thread, 1u);
  EXPECT_EQ(EndCountingAllocations(), with_a_thread);
  ::operator delete(before);
  ::operator delete(after);
}

TEST(Allocations, AlignedOnesAreCountedToo) {
  BeginCountingAllocations();
  void* volatile memory = ::operator new(100, std::align_val_t{64});
  EXPECT_EQ(EndCountingAllocations(), 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
  ::operator delete(memory, std::align_val_t{64});
}

}  // namespace
}  // namespace waybill
