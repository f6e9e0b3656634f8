// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/streams.h"

#include <algorithm>
#include <utility>

namespace waybill::simulation {

uint64_t Streams::Open(Process* process) {
  const uint64_t id = run_.NextNumber();
  streams_[id].process = process;
  run_.SetActive();
  return id;
}

void Streams::Send(uint64_t id, proto::RankMessage message) {
  Stream* stream = Find(id);
  if (stream == nullptr || !stream->to_controller_open) return;
  stream->to_controller.push_back(std::move(message));
  run_.SetActive();
}

void Streams::Close(uint64_t id) {
  if (Stream* stream = Find(id)) stream->process = nullptr;
  run_.SetActive();
}

void Streams::Forget(const Process* process) {
  for (auto& [id, stream] : streams_) {
    if (stream.process == process) stream.process = nullptr;
  }
}

void Streams::SendToRank(uint64_t id, proto::ControllerMessage message) {
  Stream* stream = Find(id);
  if (stream == nullptr || !stream->to_rank_open || stream->controller_closed) return;
  stream->to_rank.push_back(std::move(message));
  run_.SetActive();
}

void Streams::CloseByController(uint64_t id) {
  if (Stream* stream = Find(id)) stream->controller_closed = true;
  run_.SetActive();
}

void Streams::OnControllerCrash() {
  for (auto& [id, stream] : streams_) {
    stream.to_controller_open = false;
    stream.to_controller.clear();
    stream.controller_closed = true;
    while (!stream.to_rank.empty() && run_.Below(2) == 0) stream.to_rank.pop_back();
  }
}

void Streams::Break(uint64_t id) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  while (!stream->to_controller.empty() && run_.Below(2) == 0) stream->to_controller.pop_back();
  while (!stream->to_rank.empty() && run_.Below(2) == 0) stream->to_rank.pop_back();
  Process* const process = stream->process;
  stream->process = nullptr;
  stream->controller_closed = true;
  run_.SetActive();
  if (process != nullptr && process->stream() == id) process->OnStreamEnd();
}

void Streams::Lose(uint64_t id, absl::Time until) {
  Hold(id, until);
  Break(id);
}

void Streams::Hold(uint64_t id, absl::Time until) {
  if (Stream* stream = Find(id)) stream->held_until = until;
}

std::vector<Delivery> Streams::DeliverSome(Coordinator* coordinator) {
  std::vector<uint64_t> ids;
  ids.reserve(streams_.size());
  for (const auto& [id, stream] : streams_) ids.push_back(id);
  std::shuffle(ids.begin(), ids.end(), run_.random());
  std::vector<Delivery> deliveries;
  for (const uint64_t id : ids) {
    for (uint64_t messages = run_.Below(4); messages > 0; --messages) {
      Stream* stream = Find(id);
      if (stream == nullptr || !Deliver(id, *stream, coordinator, deliveries)) break;
      run_.SetActive();
    }
  }
  // A stream that has ended on both sides.
  std::erase_if(streams_, [](const auto& s) {
    return s.second.process == nullptr && !s.second.to_controller_open;
  });
  return deliveries;
}

absl::Time Streams::next_event() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, stream] : streams_) {
    if (stream.held_until > run_.now()) next = std::min(next, stream.held_until);
  }
  return next;
}

Streams::Stream* Streams::Find(uint64_t id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : &found->second;
}

// Delivers one message in one direction, or the end of the stream. Returns true if there was one.
bool Streams::Deliver(uint64_t id, Stream& stream, Coordinator* coordinator,
                      std::vector<Delivery>& deliveries) {
  if (run_.now() < stream.held_until) return false;
  return run_.Below(2) == 0 ? DeliverToController(id, stream, coordinator, deliveries)
                            : DeliverToRank(id, stream, coordinator, deliveries);
}

bool Streams::DeliverToController(uint64_t id, Stream& stream, Coordinator* coordinator,
                                  std::vector<Delivery>& deliveries) {
  if (coordinator == nullptr) return false;
  if (!stream.to_controller.empty()) {
    const proto::RankMessage message = std::move(stream.to_controller.front());
    stream.to_controller.pop_front();
    const Process* const from = stream.process;
    coordinator->OnMessage(id, message, run_.now());
    if (from != nullptr && message.has_arrived()) deliveries.push_back({from, Trigger::kArrived});
    if (from != nullptr && message.has_shown()) deliveries.push_back({from, Trigger::kShown});
    return true;
  }
  if (stream.process == nullptr && stream.to_controller_open) {
    stream.to_controller_open = false;
    coordinator->OnGone(id, run_.now());
    return true;
  }
  return false;
}

bool Streams::DeliverToRank(uint64_t id, Stream& stream, const Coordinator* coordinator,
                            std::vector<Delivery>& deliveries) {
  if (stream.process == nullptr || !stream.process->hears()) return false;
  if (!stream.opened) {
    if (coordinator == nullptr) {
      EndForRank(id, stream);
    } else {
      stream.opened = true;
      stream.process->OnStreamOpen();
    }
    return true;
  }
  if (!stream.to_rank.empty()) {
    const proto::ControllerMessage message = std::move(stream.to_rank.front());
    stream.to_rank.pop_front();
    Process* const to = stream.process;
    to->OnMessage(message);
    if (message.has_prepare()) deliveries.push_back({to, Trigger::kPrepare});
    if (message.has_start()) deliveries.push_back({to, Trigger::kStart});
    if (message.has_commit()) deliveries.push_back({to, Trigger::kCommit});
    return true;
  }
  if (stream.controller_closed) {
    EndForRank(id, stream);
    return true;
  }
  return false;
}

void Streams::EndForRank(uint64_t id, Stream& stream) {
  Process* const process = stream.process;
  stream.process = nullptr;
  stream.to_rank_open = false;
  run_.SetActive();
  if (process != nullptr && process->stream() == id) process->OnStreamEnd();
}

}  // namespace waybill::simulation
