// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/descriptors.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/progress.h"

namespace waybill::verbs {

absl::Status Descriptors::Start(absl::Duration look_every) {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) {
    return absl::InternalError(absl::StrCat("verbs fabric: ", std::strerror(errno)));
  }
  WAYBILL_RETURN_IF_ERROR(waker_.Start());
  WAYBILL_RETURN_IF_ERROR(Watch(waker_.fd()));
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const timespec period = absl::ToTimespec(look_every);
  const itimerspec times{.it_interval = period, .it_value = period};
  if (!timer_.valid() || timerfd_settime(timer_.get(), 0, &times, nullptr) != 0) {
    return absl::InternalError(absl::StrCat("verbs fabric: a timer: ", std::strerror(errno)));
  }
  return Watch(timer_.get());
}

absl::Status Descriptors::Watch(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
}

void Descriptors::WatchForRoom(int fd, bool room) {
  epoll_event event{.events = EPOLLIN | (room ? uint32_t{EPOLLOUT} : 0u), .data = {.fd = fd}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

bool Descriptors::Take(std::vector<int>& ready) {
  bool is_time = false;
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    uint64_t periods = 0;
    if (fd == timer_.get()) {
      is_time = read(fd, &periods, sizeof(periods)) == sizeof(periods);
    } else if (fd != waker_.fd()) {
      ready.push_back(fd);
    }
  }
  return is_time;
}

void Descriptors::Wait(absl::Time deadline, bool sleep) {
  if (sleep) {
    epoll_event event;
    epoll_wait(epoll_.get(), &event, 1, MillisecondsUntil(deadline));
  }
  waker_.Forget();
}

}  // namespace waybill::verbs
