#include "core/fabric/verbs/descriptors.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace waybill::verbs {

absl::Status Descriptors::Start() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_.valid()) {
    return absl::InternalError(absl::StrCat("verbs fabric: ", std::strerror(errno)));
  }
  return Watch(wake_.get());
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

void Descriptors::Take(std::vector<int>& ready) {
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    if (fd != wake_.get()) ready.push_back(fd);
  }
}

void Descriptors::Wait(absl::Time deadline, bool sleep) {
  if (sleep) {
    const int64_t left = absl::ToInt64Milliseconds(
        std::min(absl::Ceil(deadline - absl::Now(), absl::Milliseconds(1)), absl::Hours(1)));
    epoll_event event;
    epoll_wait(epoll_.get(), &event, 1, static_cast<int>(std::max<int64_t>(left, 0)));
  }
  // Only here: a wake that came before a Poll() is kept for the next Wait().
  uint64_t ignored;
  (void)!read(wake_.get(), &ignored, sizeof(ignored));
}

void Descriptors::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

}  // namespace waybill::verbs
