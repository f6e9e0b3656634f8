// SPDX-License-Identifier: Apache-2.0

// The completion queues of one NIC. Each lane brings the room that a full flush of it needs, since
// on an error every outstanding request completes, the unsignalled ones too, and a queue that
// overruns is lost with all its lanes.
#ifndef WAYBILL_CORE_FABRIC_VERBS_COMPLETION_QUEUES_H_
#define WAYBILL_CORE_FABRIC_VERBS_COMPLETION_QUEUES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// Completions of sends and of receives, apart.
struct CqPair {
  ibv_cq* send = nullptr;
  ibv_cq* receive = nullptr;
  uint32_t capacity = 0;
  uint32_t used = 0;
  uint32_t leaving =
      0;  // The number of closed lanes that may still have completions in the queues.
  bool armed = false;
  bool dead = false;  // One of them overran: nothing comes out of it any more.
};

class CompletionQueues {
 public:
  static absl::StatusOr<std::unique_ptr<CompletionQueues>> Create(Verbs* verbs, Device* device);
  ~CompletionQueues();

  // Queues with room for as many completions of each kind; given back by Return().
  // kResourceExhausted: the device gives no more.
  absl::StatusOr<CqPair*> Take(uint32_t entries);
  void Return(CqPair* pair, uint32_t entries) { pair->leaving += entries; }

  // Appends up to 32 completions of each queue; false where there was nothing.
  bool Poll(std::vector<ibv_wc>& receives, std::vector<ibv_wc>& sends);

  // The pair of a queue that the device says is dead: it is given to no lane any more, and goes
  // with the last that has it. Null: it is none of these.
  CqPair* MarkDead(const ibv_cq* cq);

  // Asks for an event on fd() at the next completion. What came before has to be polled for.
  absl::Status Arm();
  int fd() const { return channel_->fd; }
  void TakeEvents();

 private:
  CompletionQueues(Verbs* verbs, Device* device) : verbs_(*verbs), device_(*device) {}
  void Destroy(const CqPair& pair);
  // How many there were.
  int PollOne(ibv_cq* cq, std::vector<ibv_wc>& completions);

  Verbs& verbs_;
  Device& device_;
  ibv_comp_channel* channel_ = nullptr;
  std::vector<std::unique_ptr<CqPair>> pairs_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_COMPLETION_QUEUES_H_
