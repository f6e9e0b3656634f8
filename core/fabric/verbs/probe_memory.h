// SPDX-License-Identifier: Apache-2.0

// The memory by which new lanes prove that data gets through: each end writes some full packets
// into a slot of the other's, and looks at what has come.
#ifndef WAYBILL_CORE_FABRIC_VERBS_PROBE_MEMORY_H_
#define WAYBILL_CORE_FABRIC_VERBS_PROBE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "core/fabric/shared_pages.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// Four packets of the largest MTU.
constexpr uint32_t kProbeBytes = 4 * 4096;

struct ProbeSlot {
  std::byte* incoming = nullptr;  // kProbeBytes that the peer writes,
  std::byte* outgoing = nullptr;  // and as many that it is sent.
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
};

// Holds the slots of one NIC, as many as lanes connect at once. Thread-safe.
class ProbeMemory {
 public:
  ProbeMemory(Verbs* verbs, const Device* device) : verbs_(*verbs), device_(*device) {}
  ~ProbeMemory();
  ProbeMemory(const ProbeMemory&) = delete;
  ProbeMemory& operator=(const ProbeMemory&) = delete;

  // Registers memory for as many slots in all, so that Take() need not.
  void Prepare(size_t slots);
  // Returns a slot, or nullopt if no more memory can be registered.
  std::optional<ProbeSlot> Take();
  // No queue pair may use the slot any more.
  void Return(const ProbeSlot& slot);

 private:
  struct Block {
    SharedPages pages;
    ibv_mr* registration = nullptr;
  };

  void Grow(size_t slots);

  Verbs& verbs_;
  const Device& device_;
  std::mutex mutex_;
  std::vector<Block> blocks_;
  size_t slots_ = 0;  // Of all blocks.
  std::vector<ProbeSlot> free_;
};

// Fills in the bytes that the queue pair of that number sends.
void FillProbe(std::byte* bytes, uint32_t queue_pair);
// Returns the number of bytes that differ from them.
uint32_t CountProbeErrors(const std::byte* bytes, uint32_t queue_pair);

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_PROBE_MEMORY_H_
