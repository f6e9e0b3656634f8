// SPDX-License-Identifier: Apache-2.0

#include "core/simulate/control_plane.h"

#include <algorithm>

namespace waybill::simulate {

void Alarm::Set(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return;
  const int64_t at = std::max(absl::ToUnixNanos(deadline), time_.now_ns());
  if (at >= set_ns_) return;
  set_ns_ = at;
  time_.At(at, [this, at] {
    if (set_ns_ != at) return;  // An earlier one was set since, and this one perhaps again.
    set_ns_ = std::numeric_limits<int64_t>::max();
    ring_();
  });
}

ControlPlane::ControlPlane(VirtualTime* time, const Control& control)
    : time_(*time),
      control_(control),
      coordinator_({.job = "simulated", .decisions_are_durable = true}, {}, this),
      alarm_(time, [this] {
        if (time_.time() >= coordinator_.next_deadline()) coordinator_.OnTime(time_.time());
        alarm_.Set(coordinator_.next_deadline());
      }) {}

template <typename Call>
void ControlPlane::Handle(Call call) {
  free_ns_ = std::max(free_ns_, time_.now_ns()) + VirtualTime::Nanoseconds(control_.handle);
  time_.At(free_ns_, [this, call = std::move(call)] {
    call();
    alarm_.Set(coordinator_.next_deadline());
  });
}

ConnectionId ControlPlane::Open(Endpoint* rank) {
  endpoints_.push_back(rank);
  time_.After(control_.message, [rank] { rank->OnOpen(); });
  return endpoints_.size();
}

void ControlPlane::CloseByRank(ConnectionId connection) {
  endpoints_[connection - 1] = nullptr;
  time_.After(control_.message, [this, connection] {
    Handle([this, connection] { coordinator_.OnGone(connection, time_.time()); });
  });
}

void ControlPlane::SendToController(ConnectionId connection, proto::RankMessage message) {
  time_.After(control_.message, [this, connection, message = std::move(message)]() mutable {
    Handle([this, connection, message = std::move(message)] {
      coordinator_.OnMessage(connection, message, time_.time());
    });
  });
}

void ControlPlane::Send(ConnectionId connection, proto::ControllerMessage message) {
  time_.After(control_.message, [this, connection, message = std::move(message)] {
    if (endpoints_[connection - 1] != nullptr) endpoints_[connection - 1]->OnMessage(message);
  });
}

void ControlPlane::Close(ConnectionId connection) {
  time_.After(control_.message, [this, connection] {
    if (endpoints_[connection - 1] != nullptr) endpoints_[connection - 1]->OnClose();
    endpoints_[connection - 1] = nullptr;
  });
}

void ControlPlane::Compute(Work work) {
  time_.After(0, [this, work = std::move(work)] {
    Completion completion = work(InTurn);
    Handle([this, completion = std::move(completion)] { completion(time_.time()); });
  });
}

void ControlPlane::Record(uint64_t ticket, const Decision&) {
  time_.After(control_.record, [this, ticket] {
    Handle([this, ticket] {
      coordinator_.OnRecorded(ticket, Recorded::kDurable, absl::OkStatus(), time_.time());
    });
  });
}

}  // namespace waybill::simulate
