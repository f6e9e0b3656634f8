// SPDX-License-Identifier: Apache-2.0

// Ends a wait from another thread: a descriptor to wait on together with others.
#ifndef WAYBILL_CORE_FABRIC_WAKER_H_
#define WAYBILL_CORE_FABRIC_WAKER_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"

namespace waybill {

class Waker {
 public:
  absl::Status Start() {
    fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fd_.valid()) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("eventfd: ", std::strerror(errno), " (errno ", errno, ")"));
  }

  int fd() const { return fd_.get(); }  // Readable from a Wake() until the next Forget().

  void Wake() {  // From any thread.
    const uint64_t one = 1;
    (void)!write(fd_.get(), &one, sizeof(one));
  }

  // Call this at the end of a wait and nowhere else, so that a wake that came before a Poll() still
  // ends the next Wait().
  //
  // It reads even if nothing was written. A flag that saves this call would have to be set behind
  // the write: who is woken in between would find the descriptor readable and the flag not set, and
  // spin until the thread that wakes it goes on, on the same processor perhaps.
  void Forget() {
    uint64_t ignored;
    (void)!read(fd_.get(), &ignored, sizeof(ignored));
  }

 private:
  UniqueFd fd_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_WAKER_H_
