// SPDX-License-Identifier: Apache-2.0

// Turns the death by RLIMIT_FSIZE into an errno.
#ifndef WAYBILL_CORE_BASE_FILE_SIZE_SIGNAL_H_
#define WAYBILL_CORE_BASE_FILE_SIZE_SIGNAL_H_

#include <signal.h>
#include <time.h>

namespace waybill {

// Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, which kills, before it returns EFBIG. Holds the
// signal back on this thread and swallows the one that was caused here.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlocked() {
    const timespec no_time{};
    if (!was_pending_) sigtimedwait(&signal_, nullptr, &no_time);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_FILE_SIZE_SIGNAL_H_
