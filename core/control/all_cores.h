// SPDX-License-Identifier: Apache-2.0

// Distributes work over the cores of this machine.
#ifndef WAYBILL_CORE_CONTROL_ALL_CORES_H_
#define WAYBILL_CORE_CONTROL_ALL_CORES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace waybill {

// Calls task(i) for each i below `count`, on one thread per core, and waits for all calls.
inline void ForEachOnAllCores(uint32_t count, const std::function<void(uint32_t)>& task) {
  std::atomic<uint32_t> next = 0;
  const auto work = [&] {
    for (uint32_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::thread> others(
      std::min(count, std::max(std::thread::hardware_concurrency(), 1u)) - (count > 0 ? 1 : 0));
  for (std::thread& thread : others) thread = std::thread(work);
  work();
  for (std::thread& thread : others) thread.join();
}

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_ALL_CORES_H_
