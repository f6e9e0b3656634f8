// SPDX-License-Identifier: Apache-2.0

// Events with a descriptor that is readable while there are any, as in libibverbs.
#ifndef WAYBILL_TESTING_FAKE_VERBS_EVENT_QUEUE_H_
#define WAYBILL_TESTING_FAKE_VERBS_EVENT_QUEUE_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <optional>

#include "core/base/unique_fd.h"

namespace waybill::fake_verbs {

template <typename Event>
class EventQueue {
 public:
  int fd() const { return fd_.get(); }

  void Push(const Event& event) {
    events_.push_back(event);
    const uint64_t one = 1;
    (void)!write(fd_.get(), &one, sizeof(one));
  }

  // Waits for an event. If the descriptor is non-blocking and there is none, returns false and sets
  // errno to EAGAIN. Call it without holding the lock.
  bool AwaitOne() const {
    uint64_t one = 0;
    return read(fd_.get(), &one, sizeof(one)) == sizeof(one);
  }

  // Returns nullopt if the awaited events have been removed.
  std::optional<Event> Take() {
    if (events_.empty()) return std::nullopt;
    const Event event = events_.front();
    events_.pop_front();
    return event;
  }

  template <typename Predicate>
  void Remove(Predicate&& concerned) {
    std::erase_if(events_, concerned);
  }

 private:
  const UniqueFd fd_{eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)};
  std::deque<Event> events_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_EVENT_QUEUE_H_
