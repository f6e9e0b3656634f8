// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/event_loop.h"

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/progress.h"

namespace waybill::tcp {
namespace {

constexpr uint32_t kAll = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

absl::Status SystemError(absl::string_view operation) {
  return absl::InternalError(
      absl::StrCat(operation, ": ", std::strerror(errno), " (errno ", errno, ")"));
}

absl::Status Control(int epoll, int operation, int fd, uint32_t what, Ticket ticket) {
  epoll_event event{.events = what, .data = {.u64 = ticket}};
  if (epoll_ctl(epoll, operation, fd, &event) != 0) return SystemError("epoll_ctl");
  return absl::OkStatus();
}

}  // namespace

absl::Status EventLoop::Start() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return SystemError("epoll_create1");
  WAYBILL_RETURN_IF_ERROR(waker_.Start());
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_.valid()) return SystemError("timerfd_create");
  WAYBILL_RETURN_IF_ERROR(Control(epoll_.get(), EPOLL_CTL_ADD, waker_.fd(), EPOLLIN, kNobody));
  return Control(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), EPOLLIN, kNobody);
}

absl::Status EventLoop::Watch(int socket, Ticket ticket) {
  return Control(epoll_.get(), EPOLL_CTL_ADD, socket, kAll, ticket);
}

absl::Status EventLoop::Rewatch(int socket, Ticket ticket) {
  return Control(epoll_.get(), EPOLL_CTL_MOD, socket, kAll, ticket);
}

size_t EventLoop::Take(absl::Span<epoll_event> events) {
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  return count < 0 ? 0 : static_cast<size_t>(count);
}

// The sockets' events are told once, so waiting must not take them: this asks whether there are
// any.
void EventLoop::Wait(absl::Time deadline) {
  pollfd ready{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
  poll(&ready, 1, MillisecondsUntil(deadline));
  waker_.Forget();
}

void EventLoop::TellAt(Clock::time_point when) {
  if (when >= told_at_) return;
  told_at_ = when;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::max(when - Clock::now(), Clock::duration(1)))
                               .count();
  itimerspec timer{};
  timer.it_value = {.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  timerfd_settime(timer_.get(), 0, &timer, nullptr);
}

bool EventLoop::TakeTold() {
  if (told_at_ == Clock::time_point::max() || Clock::now() < told_at_) return false;
  told_at_ = Clock::time_point::max();
  uint64_t ignored;
  (void)!read(timer_.get(), &ignored, sizeof(ignored));
  return true;
}

}  // namespace waybill::tcp
