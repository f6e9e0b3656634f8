// SPDX-License-Identifier: Apache-2.0

#include "kernels/memory_bound.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/memory_bound.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Reads every line, and gives something that depends on all of them.
uint64_t ReadAll(const uint8_t* data, size_t size_bytes) {
  const hn::ScalableTag<uint64_t> d;
  const size_t step = hn::Lanes(d) * 8;
  auto all = hn::Zero(d);
  size_t at = 0;
  for (; at + 64 <= size_bytes; at += 64) {
    for (size_t i = 0; i < 64; i += step) {
      all = hn::Or(all, hn::LoadU(d, reinterpret_cast<const uint64_t*>(data + at + i)));
    }
  }
  uint64_t result = hn::GetLane(hn::SumOfLanes(d, all));
  for (; at < size_bytes; ++at) result |= data[at];
  return result;
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {
namespace {

HWY_EXPORT(ReadAll);

// The best rate at which `threads` threads do `work(begin, end)` on their parts of the bytes.
template <typename Work>
double BestRate(size_t size_bytes, size_t threads, size_t repeats, Work work) {
  using Clock = std::chrono::steady_clock;
  threads = std::max<size_t>(1, threads);
  std::barrier gate(static_cast<ptrdiff_t>(threads));
  // One repeat of thread `t`; all begin and end together. The caller is thread 0.
  const auto repeat = [&](size_t t) {
    gate.arrive_and_wait();
    const Clock::time_point begin = Clock::now();
    work(size_bytes * t / threads, size_bytes * (t + 1) / threads);
    gate.arrive_and_wait();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  std::vector<std::thread> workers;
  for (size_t t = 1; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (size_t i = 0; i < repeats; ++i) repeat(t);
    });
  }
  double best_seconds = 0;
  for (size_t i = 0; i < repeats; ++i) {
    const double seconds = repeat(0);
    best_seconds = i == 0 ? seconds : std::min(best_seconds, seconds);
  }
  for (std::thread& worker : workers) worker.join();
  return best_seconds > 0 ? static_cast<double>(size_bytes) / best_seconds : 0;
}

}  // namespace

double MeasureCopyRate(void* dst, const void* src, size_t size_bytes, size_t threads,
                       size_t repeats) {
  if (size_bytes == 0) return 0;
  uint8_t* to = static_cast<uint8_t*>(dst);
  const uint8_t* from = static_cast<const uint8_t*>(src);
  std::memcpy(to, from, size_bytes);
  return BestRate(size_bytes, threads, repeats, [=](size_t begin, size_t end) {
    std::memcpy(to + begin, from + begin, end - begin);
  });
}

double MeasureReadRate(const void* src, size_t size_bytes, size_t threads, size_t repeats) {
  const uint8_t* from = static_cast<const uint8_t*>(src);
  std::atomic<uint64_t> kept{HWY_DYNAMIC_DISPATCH(ReadAll)(from, size_bytes)};
  return BestRate(size_bytes, threads, repeats, [=, &kept](size_t begin, size_t end) {
    kept.fetch_or(HWY_DYNAMIC_DISPATCH(ReadAll)(from + begin, end - begin));
  });
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
