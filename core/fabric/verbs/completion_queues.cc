// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/completion_queues.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace waybill::verbs {
namespace {

constexpr uint32_t kEntries = 8192;  // Entries of one queue, if the device allows as many.
constexpr int kPolledAtOnce = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<CompletionQueues>> CompletionQueues::Create(Verbs* verbs,
                                                                           Device* device) {
  std::unique_ptr<CompletionQueues> queues(new CompletionQueues(verbs, device));
  queues->channel_ = verbs->CreateCompChannel(device->context());
  if (queues->channel_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("ibv_create_comp_channel of ", device->name(), ": ", std::strerror(errno)));
  }
  fcntl(queues->channel_->fd, F_SETFL, fcntl(queues->channel_->fd, F_GETFL) | O_NONBLOCK);
  return queues;
}

CompletionQueues::~CompletionQueues() {
  for (const auto& pair : pairs_) Destroy(*pair);
  if (channel_ != nullptr) verbs_.DestroyCompChannel(channel_);
}

void CompletionQueues::Destroy(const CqPair& pair) {
  verbs_.DestroyCq(pair.send);
  verbs_.DestroyCq(pair.receive);
}

absl::StatusOr<CqPair*> CompletionQueues::Take(uint32_t entries) {
  for (const auto& pair : pairs_) {
    if (!pair->dead && pair->capacity - pair->used >= entries) {
      pair->used += entries;
      return pair.get();
    }
  }
  auto pair = std::make_unique<CqPair>();
  pair->capacity = std::min(kEntries, static_cast<uint32_t>(std::max(device_.limits().max_cqe, 0)));
  if (pair->capacity < entries) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a lane needs ", entries, " completion queue entries, ", device_.name(),
                     " has queues of ", pair->capacity, ": use a smaller queue depth"));
  }
  const auto size = static_cast<int>(pair->capacity);
  pair->send = verbs_.CreateCq(device_.context(), size, channel_);
  pair->receive = verbs_.CreateCq(device_.context(), size, channel_);
  if (pair->send == nullptr || pair->receive == nullptr) {
    const int error = errno;
    if (pair->send != nullptr) verbs_.DestroyCq(pair->send);
    return absl::ResourceExhaustedError(absl::StrCat(
        "ibv_create_cq of ", device_.name(), ", ", pair->capacity,
        " entries: ", std::strerror(error), " (errno ", error, "); ", device_.WhatIsFull()));
  }
  pair->used = entries;
  pairs_.push_back(std::move(pair));
  return pairs_.back().get();
}

bool CompletionQueues::Poll(std::vector<ibv_wc>& receives, std::vector<ibv_wc>& sends) {
  bool any = false;
  for (const auto& pair : pairs_) {
    if (pair->dead) continue;
    const int received = PollOne(pair->receive, receives);
    const int sent = PollOne(pair->send, sends);
    any = any || received > 0 || sent > 0;
    if (pair->leaving > 0 && received == 0 && sent == 0) {
      pair->used -= pair->leaving;
      pair->leaving = 0;
    }
  }
  std::erase_if(pairs_, [this](const auto& pair) {
    const bool unused = pair->dead && pair->leaving == pair->used;
    if (unused) Destroy(*pair);
    return unused;
  });
  return any;
}

CqPair* CompletionQueues::MarkDead(const ibv_cq* cq) {
  for (const auto& pair : pairs_) {
    if (pair->send != cq && pair->receive != cq) continue;
    pair->dead = true;
    return pair.get();
  }
  return nullptr;
}

int CompletionQueues::PollOne(ibv_cq* cq, std::vector<ibv_wc>& completions) {
  std::array<ibv_wc, kPolledAtOnce> polled;
  const int count = verbs_.PollCq(cq, kPolledAtOnce, polled.data());
  if (count > 0) completions.insert(completions.end(), polled.begin(), polled.begin() + count);
  return count;
}

absl::Status CompletionQueues::Arm() {
  for (const auto& pair : pairs_) {
    if (pair->armed || pair->dead) continue;
    if (verbs_.ReqNotifyCq(pair->send) != 0 || verbs_.ReqNotifyCq(pair->receive) != 0) {
      return absl::InternalError(
          absl::StrCat("ibv_req_notify_cq of ", device_.name(), ": ", std::strerror(errno)));
    }
    pair->armed = true;
  }
  return absl::OkStatus();
}

void CompletionQueues::TakeEvents() {
  ibv_cq* cq = nullptr;
  while (verbs_.GetCqEvent(channel_, &cq) == 0) {
    verbs_.AckCqEvents(cq, 1);
    for (const auto& pair : pairs_) {
      if (pair->send == cq || pair->receive == cq) pair->armed = false;
    }
  }
}

}  // namespace waybill::verbs
