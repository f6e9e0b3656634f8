// What tests ask of the fake driver, apart from what any driver is asked.
#ifndef WAYBILL_TESTING_FAKE_CUDA_FAKE_CUDA_H_
#define WAYBILL_TESTING_FAKE_CUDA_FAKE_CUDA_H_

#include <cstdint>

inline constexpr int kFakeGpuCount = 2;

// In use now, by the whole process; and since it began.
struct FakeCudaUse {
  uint64_t allocations;
  uint64_t pinned;
  uint64_t streams;
  uint64_t bytes_to_host;
};

extern "C" {
// After so many launches and copies all fail; below 0: none does any more.
void FakeCudaFail(int64_t after);
FakeCudaUse FakeCudaNow();
}

#endif  // WAYBILL_TESTING_FAKE_CUDA_FAKE_CUDA_H_
