// SPDX-License-Identifier: Apache-2.0

// Owns a file descriptor.
#ifndef WAYBILL_CORE_BASE_UNIQUE_FD_H_
#define WAYBILL_CORE_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace waybill {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor to the caller, who closes it.
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_UNIQUE_FD_H_
