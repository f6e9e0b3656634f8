// Which of an update's chunks are to be staged, how, and when.
#ifndef WAYBILL_CORE_ENGINE_CHUNK_QUEUES_H_
#define WAYBILL_CORE_ENGINE_CHUNK_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace waybill {

// Allocates nothing after Reserve().
struct ChunkQueues {
  std::vector<uint32_t> direct;  // Stored through a mapping, at once.
  std::vector<uint32_t> posted;  // By way of slots, in this order.
  size_t next_posted = 0;
  // Those that quantise by scales that are not known yet.
  std::vector<uint32_t> waiting_direct;
  std::vector<uint32_t> waiting_posted;

  void Reserve(uint32_t chunks) {
    for (auto* queue : {&direct, &posted, &waiting_direct, &waiting_posted}) queue->reserve(chunks);
  }
  void Clear() {
    for (auto* queue : {&direct, &posted, &waiting_direct, &waiting_posted}) queue->clear();
    next_posted = 0;
  }
  void Add(uint32_t chunk, bool mapped, bool waits) {
    auto& queue = mapped ? (waits ? waiting_direct : direct) : (waits ? waiting_posted : posted);
    queue.push_back(chunk);
  }
  // All scales are known.
  void ReleasePosted() {
    posted.insert(posted.end(), waiting_posted.begin(), waiting_posted.end());
  }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_CHUNK_QUEUES_H_
