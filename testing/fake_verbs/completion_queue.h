// SPDX-License-Identifier: Apache-2.0

// A completion queue of limited size, and the channel that reports its next completion.
#ifndef WAYBILL_TESTING_FAKE_VERBS_COMPLETION_QUEUE_H_
#define WAYBILL_TESTING_FAKE_VERBS_COMPLETION_QUEUE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>

#include "testing/fake_verbs/event_queue.h"

namespace waybill::fake_verbs {

struct Channel : ibv_comp_channel {
  EventQueue<ibv_cq*> events;
};

struct Completion {
  ibv_wc done;
  uint64_t queue_pair = 0;  // Identifies the queue pair; never used again.
  bool is_send = false;
  uint64_t end = 0;         // Its place in its queue, plus one. Polling it frees the slots before.
  uint64_t visible_at = 0;  // In ticks of the wire.
};

// Returns a failed completion. Only its request, status, queue pair and vendor error are set; the
// rest is garbage, as on real NICs.
ibv_wc FailedCompletion(uint64_t wr_id, ibv_wc_status status, uint32_t queue_pair_number);
// Returns a completion that has garbage in all fields that the caller does not fill in.
ibv_wc BlankCompletion(uint64_t wr_id, uint32_t queue_pair_number);

class CompletionQueue : public ibv_cq {
 public:
  CompletionQueue(ibv_context* context, int entries, ibv_comp_channel* channel);

  // Returns false if there was no room. Then the queue is dead, and nothing comes out of it any
  // more.
  bool Push(const Completion& completion);
  bool dead() const { return dead_; }
  void Kill();

  // Takes the oldest completion. Returns false if there is none, or if it is not visible yet.
  bool Take(uint64_t now, Completion& completion);
  // Requests an event for the next Push(), or at once if `at_once`.
  void Arm(bool at_once);
  // Delivers the event for which the queue was armed, though nothing has come.
  void Wake() {
    if (armed_) Tell();
  }
  bool HoldsInvisible(uint64_t now) const;

  void Remove(uint64_t queue_pair);
  // Makes everything that was pushed visible, because the NIC is done with a queue pair that uses
  // the queue.
  void Settle();

  size_t size() const { return entries_.size(); }
  uint32_t queue_pairs = 0;  // Users of the queue.
  uint32_t events_out = 0;   // Events that were taken and not acknowledged.

 private:
  void Tell();

  std::deque<Completion> entries_;
  bool armed_ = false;
  bool dead_ = false;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_COMPLETION_QUEUE_H_
