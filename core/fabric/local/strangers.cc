// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/local/strangers.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/steady_now.h"

namespace waybill::local {

absl::Status Strangers::Start() {
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (timer_.valid()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("timerfd_create: ", std::strerror(errno), " (errno ", errno, ")"));
}

void Strangers::Add(UniqueFd socket) {
  if (strangers_.size() >= most_) CloseOldest();
  strangers_.push_back({std::move(socket), SteadyNow() + patience_});
  if (strangers_.size() == 1) ArmTimer();
}

bool Strangers::Has(int socket) const {
  return std::any_of(strangers_.begin(), strangers_.end(),
                     [&](const Stranger& s) { return s.socket.get() == socket; });
}

UniqueFd Strangers::Take(int socket) {
  const auto found = std::find_if(strangers_.begin(), strangers_.end(),
                                  [&](const Stranger& s) { return s.socket.get() == socket; });
  UniqueFd taken = std::move(found->socket);
  strangers_.erase(found);
  return taken;
}

void Strangers::Expire() {
  uint64_t ignored;
  (void)!read(timer_.get(), &ignored, sizeof(ignored));
  while (!strangers_.empty() && strangers_.front().deadline <= SteadyNow()) CloseOldest();
  if (!strangers_.empty()) ArmTimer();
}

void Strangers::CloseOldest() {
  strangers_.pop_front();
  ++silent_;
}

// For the oldest: later ones are looked at when its time has come.
void Strangers::ArmTimer() {
  const absl::Duration left =
      std::max(strangers_.front().deadline - SteadyNow(), absl::Nanoseconds(1));
  itimerspec timer{};
  timer.it_value = absl::ToTimespec(left);
  timerfd_settime(timer_.get(), 0, &timer, nullptr);
}

}  // namespace waybill::local
