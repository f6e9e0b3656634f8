// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/lane_set.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/progress.h"
#include "core/net/tcp_socket.h"

namespace waybill::tcp {
namespace {

// Tickets: of a lane's socket its number, above them the doorway's, above those the probes'.
constexpr Ticket kProbes = Ticket{1} << 48;

Ticket TicketOf(LaneId id) { return static_cast<Ticket>(id); }

}  // namespace

absl::Status LaneSet::Start() {
  events.reserve(kUsualEvents);
  WAYBILL_RETURN_IF_ERROR(loop_.Start());
  return doorway_.Open(options_.listener);
}

absl::StatusOr<LaneId> LaneSet::Open(absl::string_view peer) {
  WAYBILL_ASSIGN_OR_RETURN(const Secret secret, NewSecret());
  const LaneId id{++last_lane_};
  TcpLane& lane = lanes_[id];
  lane.peer = std::string(peer);
  lane.own_address = {doorway_.address(), secret};
  return id;
}

absl::Status LaneSet::Close(LaneId id) {
  if (lanes_.erase(id) == 0) return Find(id).status();
  std::erase_if(events, [id](const FabricEvent& e) { return e.lane == id; });
  return absl::OkStatus();
}

absl::StatusOr<TcpLane*> LaneSet::Find(LaneId id) {
  const auto lane = lanes_.find(id);
  if (lane != lanes_.end()) return &lane->second;
  return absl::NotFoundError(absl::StrCat("no lane ", static_cast<uint32_t>(id)));
}

absl::StatusOr<const TcpLane*> LaneSet::Find(LaneId id) const {
  return const_cast<LaneSet*>(this)->Find(id);
}

absl::StatusOr<TcpLane*> LaneSet::FindConnected(LaneId id) {
  WAYBILL_ASSIGN_OR_RETURN(TcpLane * lane, Find(id));
  WAYBILL_RETURN_IF_ERROR(lane->status);
  if (lane->stage != TcpLane::Stage::kConnected) {
    return absl::FailedPreconditionError(absl::StrCat("lane to ", lane->peer, " is not connected"));
  }
  return lane;
}

// --- connecting ---

absl::Status LaneSet::Connect(LaneId id, absl::string_view peer_address) {
  WAYBILL_ASSIGN_OR_RETURN(TcpLane * lane, Find(id));
  absl::StatusOr<LaneAddress> address = ParseLaneAddress(peer_address);
  if (!address.ok()) return While(absl::StrCat("connect to ", lane->peer), address.status());
  if (lane->peer_address) {
    return absl::FailedPreconditionError(
        absl::StrCat("connect to ", lane->peer, ": this lane has a peer"));
  }
  const std::string own = ToString(lane->own_address);
  if (own == peer_address) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect to ", lane->peer, ": the address is the lane's own"));
  }
  lane->peer_address = *std::move(address);
  lane->deadline = Clock::now() + absl::ToChronoNanoseconds(options_.connect_timeout);
  loop_.TellAt(lane->deadline);
  // The end with the smaller address connects, and the other end waits for its hello.
  if (own < peer_address) {
    if (absl::Status status = Dial(id, *lane); !status.ok()) Fail(id, *lane, std::move(status));
    return absl::OkStatus();
  }
  if (lane->stage == TcpLane::Stage::kHeld && Same(lane->hello_from, lane->peer_address->secret)) {
    Welcome(id, *lane);
    return absl::OkStatus();
  }
  lane->socket.Reset();  // If somebody came, it was another one.
  lane->stage = TcpLane::Stage::kApart;
  Probe(id, *lane);
  return absl::OkStatus();
}

absl::Status LaneSet::Dial(LaneId id, TcpLane& lane) {
  WAYBILL_ASSIGN_OR_RETURN(lane.socket,
                           net::BeginConnect(lane.peer_address->listener, options_.listener.host));
  lane.stage = TcpLane::Stage::kDialling;
  return loop_.Watch(lane.socket.get(), TicketOf(id));
}

void LaneSet::FinishDialling(LaneId id, TcpLane& lane) {
  absl::Status status = net::FinishConnect(lane.socket.get(), lane.peer_address->listener);
  if (status.ok()) {
    status = net::SetKeepAlive(lane.socket.get(), options_.dead_peer_seconds);
  }
  if (!status.ok()) return Fail(id, lane, std::move(status));
  const Hello hello{.wanted_lane = lane.peer_address->secret, .own_lane = lane.own_address.secret};
  // A new socket takes so little at once.
  const absl::StatusOr<size_t> sent =
      net::Send(lane.socket.get(), {reinterpret_cast<const std::byte*>(&hello), sizeof(hello)});
  if (!sent.ok()) return Fail(id, lane, sent.status());
  if (*sent != sizeof(hello)) return Fail(id, lane, absl::InternalError("a hello was cut"));
  lane.stage = TcpLane::Stage::kGreeting;
}

// An end that waits for a hello looks whether there is anybody who could come: that a peer is gone
// is told now and not at the deadline.
void LaneSet::Probe(LaneId id, TcpLane& lane) {
  absl::StatusOr<UniqueFd> probe =
      net::BeginConnect(lane.peer_address->listener, options_.listener.host);
  if (!probe.ok()) {
    if (absl::IsUnavailable(probe.status())) Fail(id, lane, probe.status());
    return;
  }
  lane.probe = *std::move(probe);
  if (!loop_.Watch(lane.probe.get(), kProbes + TicketOf(id)).ok()) lane.probe.Reset();
}

void LaneSet::TakeProbe(LaneId id) {
  const absl::StatusOr<TcpLane*> lane = Find(id);
  if (!lane.ok() || !(*lane)->probe.valid()) return;
  absl::Status status = net::FinishConnect((*lane)->probe.get(), (*lane)->peer_address->listener);
  (*lane)->probe.Reset();
  if (!status.ok() && (*lane)->stage == TcpLane::Stage::kApart) Fail(id, **lane, std::move(status));
}

void LaneSet::TakeArrival(Arrival arrival) {
  for (auto& [id, lane] : lanes_) {
    if (!Same(lane.own_address.secret, arrival.hello.wanted_lane)) continue;
    const bool is_expected =
        !lane.peer_address || Same(lane.peer_address->secret, arrival.hello.own_lane);
    if (lane.stage != TcpLane::Stage::kApart || !is_expected) break;
    lane.socket = std::move(arrival.socket);
    lane.probe.Reset();
    lane.hello_from = arrival.hello.own_lane;
    lane.stage = TcpLane::Stage::kHeld;
    absl::Status status = net::SetKeepAlive(lane.socket.get(), options_.dead_peer_seconds);
    if (status.ok()) status = loop_.Rewatch(lane.socket.get(), TicketOf(id));
    if (!status.ok()) return Fail(id, lane, std::move(status));
    if (lane.peer_address) Welcome(id, lane);
    return;
  }
  doorway_.CountRefused();
}

void LaneSet::Welcome(LaneId id, TcpLane& lane) {
  lane.outbox.Push({.kind = FrameKind::kWelcome});
  Connected(id, lane);
  lane.is_writable = true;
  lane.is_readable = true;
  SendSome(id, lane);
  Enqueue(id, lane);
}

// A peer that is not welcome yet has nothing to say: it has gone, or it is none of ours.
void LaneSet::LookAtHeld(TcpLane& lane) {
  std::byte byte;
  const absl::StatusOr<size_t> received = net::Receive(lane.socket.get(), absl::MakeSpan(&byte, 1));
  if (received.ok() && *received == 0) return;
  lane.socket.Reset();
  lane.stage = TcpLane::Stage::kApart;
}

void LaneSet::Connected(LaneId id, TcpLane& lane) {
  lane.stage = TcpLane::Stage::kConnected;
  ++counts.connected_lanes;
  loop_.TellAt(Clock::now() + std::chrono::milliseconds(1000) * options_.dead_peer_seconds / 4);
  events.push_back({.kind = FabricEvent::Kind::kConnected, .lane = id});
}

// --- ending ---

void LaneSet::Fail(LaneId id, TcpLane& lane, absl::Status status) {
  if (lane.stage == TcpLane::Stage::kDead) return;
  lane.stage = TcpLane::Stage::kDead;
  lane.status = WithScope(
      absl::IsAborted(status)
          ? absl::UnavailableError(absl::StrCat(lane.peer, " is gone: ", status.message()))
          : While(absl::StrCat("tcp lane to ", lane.peer), std::move(status)),
      Scope::kPeer);
  lane.socket.Reset();
  lane.probe.Reset();
  ++counts.failed_lanes;
  events.push_back({.kind = FabricEvent::Kind::kFailed, .lane = id});
}

void LaneSet::Refuse(LaneId id, TcpLane& lane, absl::Status status) {
  if (lane.stage == TcpLane::Stage::kDead) return;
  ++counts.refused_writes;
  lane.refusal = std::string(status.message().substr(0, kMostRefusalBytes));
  lane.outbox.KeepWhatHasBegun();
  lane.outbox.Push({.kind = FrameKind::kRefused,
                    .immediate = static_cast<uint32_t>(status.code()),
                    .size_bytes = lane.refusal.size()},
                   reinterpret_cast<const std::byte*>(lane.refusal.data()));
  SendSome(id, lane);
  if (lane.outbox.empty()) doorway_.SeeOff(std::move(lane.socket));
  Fail(id, lane, std::move(status));
}

void LaneSet::Expire() {
  const Clock::time_point now = Clock::now();
  doorway_.Expire(now);
  door_is_open_ = true;  // In case that nobody could be let in for want of descriptors.
  for (auto& [id, lane] : lanes_) {
    if (lane.stage == TcpLane::Stage::kConnected) LookForSilence(id, lane, now);
    if (!lane.peer_address || lane.stage >= TcpLane::Stage::kConnected) continue;
    if (lane.deadline > now) {
      loop_.TellAt(lane.deadline);
    } else {
      Fail(id, lane,
           absl::DeadlineExceededError(
               absl::StrCat("not connected to ", net::ToString(lane.peer_address->listener),
                            " within ", absl::FormatDuration(options_.connect_timeout))));
    }
  }
}

void LaneSet::LookForSilence(LaneId id, TcpLane& lane, Clock::time_point now) {
  const std::chrono::seconds most(options_.dead_peer_seconds);
  loop_.TellAt(now + std::chrono::milliseconds(most) / 4);
  if (!lane.silence.IsBeyond(most, lane.socket.get(), now)) return;
  Fail(id, lane,
       absl::AbortedError(absl::StrCat("its host has acknowledged nothing for ",
                                       options_.dead_peer_seconds, " s")));
}

// --- turns ---

void LaneSet::Enqueue(LaneId id, TcpLane& lane) {
  if (std::exchange(lane.is_queued, true)) return;
  turns_.PushBack(id);
}

std::optional<LaneId> LaneSet::TakeTurn() {
  while (!turns_.empty()) {
    const LaneId id = turns_.PopFront();
    const auto found = lanes_.find(id);
    if (found == lanes_.end()) continue;
    TcpLane& lane = found->second;
    lane.is_queued = false;
    if (lane.stage == TcpLane::Stage::kHeld) LookAtHeld(lane);
    if (lane.stage == TcpLane::Stage::kDialling && lane.is_writable) FinishDialling(id, lane);
    if (lane.stage == TcpLane::Stage::kGreeting || lane.stage == TcpLane::Stage::kConnected) {
      return id;
    }
  }
  return std::nullopt;
}

void LaneSet::TakeEvents() {
  std::array<epoll_event, 64> ready;
  const size_t count = loop_.Take(absl::MakeSpan(ready));
  for (size_t i = 0; i < count; ++i) {
    const Ticket ticket = ready[i].data.u64;
    const uint32_t what = ready[i].events;
    if (ticket == EventLoop::kNobody) continue;
    if (ticket == Doorway::kListener) {
      door_is_open_ = true;
    } else if (ticket >= kProbes) {
      TakeProbe(LaneId{static_cast<uint32_t>(ticket - kProbes)});
    } else if (ticket > Doorway::kListener) {
      if (std::optional<Arrival> arrival = doorway_.Look(ticket)) TakeArrival(*std::move(arrival));
    } else if (const auto lane = lanes_.find(LaneId{static_cast<uint32_t>(ticket)});
               lane != lanes_.end()) {
      lane->second.is_readable |= (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
      lane->second.has_ended |= (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
      lane->second.is_writable |= (what & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
      Enqueue(lane->first, lane->second);
    }
  }
  if (door_is_open_) door_is_open_ = !doorway_.Accept();
  if (loop_.TakeTold()) Expire();
}

void LaneSet::WakeWhenWorthIt(TcpLane& lane) {
  constexpr uint64_t kLongBytes = 64 << 10;
  const uint64_t left = lane.inbox.left_bytes();
  const int wanted = left < kLongBytes ? 1 : static_cast<int>(std::min(left, kTurnBytes));
  if (wanted == lane.readable_at_bytes) return;
  ++counts.setting_calls;
  // If it cannot be set, there are more wakes, but no harm.
  if (net::SetReadableAt(lane.socket.get(), wanted).ok()) lane.readable_at_bytes = wanted;
}

void LaneSet::SendSome(LaneId id, TcpLane& lane) {
  std::array<iovec, 64> parts;
  uint64_t allowance = kTurnBytes;
  while (lane.is_writable && allowance > 0 && !lane.outbox.empty()) {
    const size_t count = lane.outbox.Gather(absl::MakeSpan(parts), allowance);
    uint64_t offered = 0;
    for (size_t i = 0; i < count; ++i) offered += parts[i].iov_len;
    ++counts.send_calls;
    const absl::StatusOr<size_t> sent =
        net::SendParts(lane.socket.get(), absl::MakeSpan(parts).subspan(0, count));
    if (!sent.ok()) {
      // The peer's last bytes are still to be read; they may say why it closed.
      lane.lost = sent.status();
      lane.is_writable = false;
      lane.is_readable = true;
      break;
    }
    lane.outbox.Consume(*sent);
    counts.sent_bytes += *sent;
    allowance -= *sent;
    lane.is_writable = *sent == offered;
  }
  const bool has_more = lane.is_writable && !lane.outbox.empty();
  if (has_more || !lane.lost.ok()) Enqueue(id, lane);
}

}  // namespace waybill::tcp
