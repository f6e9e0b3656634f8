// A completion queue of limited size, and the channel that tells of its next completion.
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
  uint64_t queue_pair = 0;  // Its identity, which is never used again.
  bool is_send = false;
  uint64_t end = 0;         // Its place in its queue, plus one: up to there slots are free again.
  uint64_t visible_at = 0;  // Of the wire's clock.
};

// A failed one says the request, the status, the queue pair's number and the vendor's error; all
// else in it is garbage, as on real NICs.
ibv_wc FailedCompletion(uint64_t wr_id, ibv_wc_status status, uint32_t queue_pair_number);
// Garbage, where the caller fills nothing in.
ibv_wc BlankCompletion(uint64_t wr_id, uint32_t queue_pair_number);

class CompletionQueue : public ibv_cq {
 public:
  CompletionQueue(ibv_context* context, int entries, ibv_comp_channel* channel);

  // False: there was no room. It is dead from then on: nothing comes out of it any more.
  bool Push(const Completion& completion);
  bool dead() const { return dead_; }
  void Kill();

  // Nothing that becomes visible later, and nothing behind it.
  bool Take(uint64_t now, Completion& completion);
  // An event for the next Push(); at once where `at_once`.
  void Arm(bool at_once);
  // The event that it was armed for, though nothing has come.
  void Wake() {
    if (armed_) Tell();
  }
  bool HoldsInvisible(uint64_t now) const;

  void Remove(uint64_t queue_pair);
  // What was pushed is visible: the NIC is done with a queue pair of it.
  void Settle();

  size_t size() const { return entries_.size(); }
  uint32_t queue_pairs = 0;  // That use it.
  uint32_t events_out = 0;   // That were got and not acknowledged.

 private:
  void Tell();

  std::deque<Completion> entries_;
  bool armed_ = false;
  bool dead_ = false;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_COMPLETION_QUEUE_H_
