// SPDX-License-Identifier: Apache-2.0

// The descriptors that a verbs endpoint waits on, and the wake from other threads.
#ifndef WAYBILL_CORE_FABRIC_VERBS_DESCRIPTORS_H_
#define WAYBILL_CORE_FABRIC_VERBS_DESCRIPTORS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/fabric/waker.h"

namespace waybill::verbs {

class Descriptors {
 public:
  // Take() says so as often as `look_every` has passed.
  absl::Status Start(absl::Duration look_every);

  int epoll() const { return epoll_.get(); }

  // Until it is closed: readable, and writable where `room` is set.
  absl::Status Watch(int fd);
  void WatchForRoom(int fd, bool room);

  // Returns the descriptors that are ready now, except for the wake.
  bool Take(std::vector<int>& ready);

  // Blocks until one is ready, the deadline, or Wake(). `sleep` false: only forgets the wakes.
  void Wait(absl::Time deadline, bool sleep);
  void Wake() { waker_.Wake(); }  // From any thread.

 private:
  UniqueFd epoll_;
  Waker waker_;
  UniqueFd timer_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_DESCRIPTORS_H_
