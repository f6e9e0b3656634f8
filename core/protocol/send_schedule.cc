// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/send_schedule.h"

#include <algorithm>
#include <utility>

namespace waybill {

SlotPool::SlotPool(uint32_t count) : count_(count) {
  for (uint32_t slot = count; slot-- > 0;) free_.push_back(slot);
}

uint32_t SlotPool::Take() {
  if (free_.empty()) return kNone;
  const uint32_t slot = free_.back();
  free_.pop_back();
  high_water_ = std::max(high_water_, in_use());
  return slot;
}

void SlotPool::Free(uint32_t slot) {
  free_.push_back(slot);
  ++changes_;
}

void SlotPool::Claim(uint32_t before, uint32_t now) {
  claims_ = claims_ - before + now;
  if (before != now) ++changes_;
}

void SendSchedule::SetPeers(absl::Span<const uint32_t> lane_counts, uint32_t most_payloads,
                            uint32_t most_direct_posts) {
  most_direct_posts_ = most_direct_posts;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].state != Slot::State::kFree) FreeSlot(slot);
  }
  phase_ = Phase::kIdle;
  peers_.assign(lane_counts.size(), {});
  uint32_t lanes = 0;
  for (uint32_t p = 0; p < lane_counts.size(); ++p) {
    peers_[p].first_lane = lanes;
    peers_[p].lane_count = lane_counts[p];
    lanes += lane_counts[p];
  }
  lanes_.assign(lanes, {});
  entries_.reserve(most_payloads);
  entries_.clear();
  held_.assign(most_payloads, kNone);
  stores_ = {};
  written_ = 0;
  counts_ = {};
  Claim();
}

void SendSchedule::Begin(absl::Span<const Payload> payloads, absl::Span<const TakesPart> peers,
                         FinishRule finish) {
  phase_ = Phase::kSending;
  finish_ = finish == FinishRule::kAtOnce ? Finish::kAllowed : Finish::kPending;
  scales_known_ = trade_quiet_ = false;
  counts_ = {};
  entries_.clear();
  std::fill(held_.begin(), held_.end(), kNone);
  stores_ = {};
  for (uint32_t p = 0; p < peers_.size(); ++p) {
    Peer& peer = peers_[p];
    peer = {.first_lane = peer.first_lane,
            .lane_count = peer.lane_count,
            .failed = peer.failed,
            .closed = peer.closed,
            .takes_part = peers[p] == TakesPart::kYes,
            .served = peer.served};
    for (Lane& lane : LanesOf(peer)) lane = {};
  }
  for (const Payload& payload : payloads) {
    Peer& peer = peers_[payload.lane.peer];
    if (!IsServed(peer)) continue;
    const auto entry = static_cast<uint32_t>(entries_.size());
    entries_.push_back({payload});
    peer.digesting = peer.digesting || payload.digested_apart;
    ++(payload.way == SendWay::kStored ? peer.to_store : peer.to_post);
    if (payload.held) {
      held_[payload.id] = entry;
    } else {
      MakeReady(entry);
    }
  }
  changed_ = true;
}

void SendSchedule::MakeReady(uint32_t entry) {
  const Payload& payload = entries_[entry].payload;
  if (payload.way == SendWay::kStored) return Push(stores_, entry);
  Lane& lane = LaneOf(payload.lane);
  if (payload.way == SendWay::kDirect) return Push(lane.direct, entry);
  ++peers_[payload.lane.peer].to_stage;
  Push(lane.ready, entry);
}

bool SendSchedule::Next(SendCommand& command) {
  if (!changed_ && seen_pool_changes_ == pool_.changes()) return false;
  command = {};
  if (NextClose(command) || NextStore(command) || NextPost(command) || NextStage(command) ||
      NextDirectPost(command) || NextEnd(command) || NextVerdict(command)) {
    return true;
  }
  Claim();
  changed_ = false;
  seen_pool_changes_ = pool_.changes();
  return false;
}

// --- next commands ---

bool SendSchedule::NextClose(SendCommand& command) {
  for (uint32_t p = 0; p < peers_.size(); ++p) {
    const Peer& peer = peers_[p];
    if (!peer.failed || peer.closed || peer.stores_active > 0 || peer.staging > 0) continue;
    command.kind = SendCommand::Kind::kClose;
    command.lane = {p, 0};
    return true;
  }
  return false;
}

bool SendSchedule::NextStore(SendCommand& command) {
  for (uint32_t entry = Pop(stores_); entry != kNone; entry = Pop(stores_)) {
    const Payload& payload = entries_[entry].payload;
    Peer& peer = peers_[payload.lane.peer];
    if (peer.failed) continue;
    ++peer.stores_active;
    ++counts_.stores;
    counts_.bytes += payload.size_bytes;
    command.kind = SendCommand::Kind::kStore;
    command.lane = payload.lane;
    command.payload = payload.id;
    return true;
  }
  return false;
}

bool SendSchedule::NextPost(SendCommand& command) {
  if (written_ == 0) return false;
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    Slot& slot = slots_[s];
    if (slot.state != Slot::State::kWritten || LaneOf(slot.lane).full ||
        peers_[slot.lane.peer].failed) {
      continue;
    }
    slot.state = Slot::State::kPosting;
    --written_;
    command.kind = SendCommand::Kind::kPost;
    command.lane = slot.lane;
    command.payload = slot.payload;
    command.slot = s;
    return true;
  }
  return false;
}

bool SendSchedule::NextDirectPost(SendCommand& command) {
  if (phase_ != Phase::kSending) return false;
  for (uint32_t p = 0; p < peers_.size(); ++p) {
    if (!IsServed(peers_[p])) continue;
    for (uint32_t l = 0; l < peers_[p].lane_count; ++l) {
      const Lane& lane = lanes_[peers_[p].first_lane + l];
      if (lane.direct.head == kNone || lane.full || lane.direct_posts == most_direct_posts_)
        continue;
      command.kind = SendCommand::Kind::kPost;
      command.lane = {p, l};
      command.payload = entries_[lane.direct.head].payload.id;
      command.slot = kNoSlot;
      return true;
    }
  }
  return false;
}

bool SendSchedule::NeedsSlots(const Peer& peer) const {
  return phase_ == Phase::kSending && IsServed(peer) && peer.to_stage > 0;
}

// Returns the most slots that one peer may hold now. The share is rounded up, so that no slot stays
// idle. If two or more peers need slots, it is less than the number of slots.
uint32_t SendSchedule::Share() {
  Claim();
  const uint32_t peers = pool_.claims(), slots = pool_.count();
  return peers == 0 ? slots : (slots + peers - 1) / peers;
}

void SendSchedule::Claim() {
  const auto peers = static_cast<uint32_t>(std::count_if(
      peers_.begin(), peers_.end(), [this](const Peer& peer) { return NeedsSlots(peer); }));
  pool_.Claim(std::exchange(claims_, peers), peers);
}

bool SendSchedule::NextStage(SendCommand& command) {
  if (phase_ != Phase::kSending || pool_.in_use() == pool_.count()) return false;
  const uint32_t share = Share();
  uint32_t best = kNone;
  uint32_t best_lane = 0;
  for (uint32_t p = 0; p < peers_.size(); ++p) {
    const Peer& peer = peers_[p];
    if (!IsServed(peer) || peer.to_stage == 0 || peer.slots >= share) continue;
    if (best != kNone &&
        std::pair(peers_[best].slots, peers_[best].served) <= std::pair(peer.slots, peer.served)) {
      continue;
    }
    uint32_t fewest = kNone;
    for (uint32_t l = 0; l < peer.lane_count; ++l) {
      const Lane& lane = lanes_[peer.first_lane + l];
      if (lane.ready.head == kNone || lane.slots >= fewest) continue;
      fewest = lane.slots;
      best = p;
      best_lane = l;
    }
  }
  if (best == kNone) return false;
  Peer& peer = peers_[best];
  const SendLane lane = {best, best_lane};
  const Payload& payload = entries_[Pop(LaneOf(lane).ready)].payload;
  const uint32_t slot = TakeSlot(lane);
  slots_[slot].payload = payload.id;
  slots_[slot].size_bytes = payload.size_bytes;
  --peer.to_stage;
  ++peer.staging;
  command.kind = SendCommand::Kind::kStage;
  command.lane = lane;
  command.payload = payload.id;
  command.slot = slot;
  return true;
}

bool SendSchedule::NextEnd(SendCommand& command) {
  if (phase_ != Phase::kSending || finish_ != Finish::kAllowed) return false;
  for (uint32_t p = 0; p < peers_.size(); ++p) {
    if (IsServed(peers_[p]) && !peers_[p].done && IsPosted(peers_[p]) && NextEndOf(p, command)) {
      return true;
    }
  }
  return false;
}

bool SendSchedule::NextEndOf(uint32_t p, SendCommand& command) {
  Peer& peer = peers_[p];
  bool done = true;
  for (uint32_t l = 0; l < peer.lane_count; ++l) {
    Lane& lane = lanes_[peer.first_lane + l];
    done = done && lane.ended && lane.posts_outstanding == 0;
    if (lane.ended || lane.full || (l == 0 && peer.digesting)) continue;
    command.lane = {p, l};
    command.kind = SendCommand::Kind::kEndLane;
    lane.ended = true;
    return true;
  }
  if (!done) return false;
  peer.done = true;
  command.kind = SendCommand::Kind::kPeerDone;
  command.lane = {p, 0};
  return true;
}

bool SendSchedule::NextVerdict(SendCommand& command) {
  if (phase_ == Phase::kSending && finish_ == Finish::kPending && scales_known_ &&
      std::all_of(peers_.begin(), peers_.end(),
                  [](const Peer& peer) { return !IsServed(peer) || IsPosted(peer); })) {
    finish_ = Finish::kAsked;
    command.kind = SendCommand::Kind::kCheck;
    return true;
  }
  const bool sent = phase_ == Phase::kSending && finish_ == Finish::kAllowed && scales_known_ &&
                    std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
                      if (peer.failed) return peer.closed && !peer.digesting;
                      return !peer.takes_part || peer.done;
                    });
  bool quiet = phase_ == Phase::kStopping;
  for (uint32_t p = 0; quiet && p < peers_.size(); ++p) {
    quiet = peers_[p].failed ? peers_[p].closed : posts_outstanding(p) == 0;
  }
  if (!trade_quiet_ || !(sent || quiet)) return false;
  phase_ = Phase::kIdle;
  command.kind = sent ? SendCommand::Kind::kSent : SendCommand::Kind::kQuiet;
  return true;
}

// --- events ---

void SendSchedule::OnStored(uint32_t peer, uint32_t count) {
  peers_[peer].stores_active -= count;
  peers_[peer].to_store -= count;
  changed_ = true;
}

void SendSchedule::OnStaged(uint32_t slot) {
  if (slots_[slot].state != Slot::State::kStaging) return;
  slots_[slot].state = Slot::State::kWritten;
  --peers_[slots_[slot].lane.peer].staging;
  ++written_;
  changed_ = true;
}

void SendSchedule::OnAccepted(const SendCommand& command) {
  ++LaneOf(command.lane).posts_outstanding;
  if (command.kind == SendCommand::Kind::kEndLane) {
    ++counts_.immediates;
    return;
  }
  --peers_[command.lane.peer].to_post;
  if (command.slot == kNoSlot) {
    Lane& lane = LaneOf(command.lane);
    ++lane.direct_posts;
    counts_.bytes += entries_[Pop(lane.direct)].payload.size_bytes;
    return;
  }
  Slot& slot = slots_[command.slot];
  slot.state = Slot::State::kPosted;
  counts_.bytes += slot.size_bytes;
}

void SendSchedule::OnRefused(const SendCommand& command) {
  Lane& lane = LaneOf(command.lane);
  lane.full = true;
  if (command.kind == SendCommand::Kind::kEndLane) {
    lane.ended = false;
    return;
  }
  if (command.slot == kNoSlot) return;
  slots_[command.slot].state = Slot::State::kWritten;
  ++written_;
}

void SendSchedule::OnComplete(SendLane lane, uint32_t slot) {
  if (peers_[lane.peer].closed || LaneOf(lane).posts_outstanding == 0) return;
  if (slot != kNoSlot) {
    if (slot >= slots_.size() || slots_[slot].state != Slot::State::kPosted ||
        slots_[slot].lane != lane) {
      return;
    }
    FreeSlot(slot);
  } else if (LaneOf(lane).direct_posts > 0) {
    --LaneOf(lane).direct_posts;  // The post that ends a lane follows all its direct posts.
  }
  --LaneOf(lane).posts_outstanding;
  changed_ = true;
}

void SendSchedule::OnDigested(uint32_t peer) {
  if (std::exchange(peers_[peer].digesting, false)) changed_ = true;
}

void SendSchedule::Retry(absl::FunctionRef<bool(SendLane lane)> has_room) {
  for (uint32_t p = 0; p < peers_.size(); ++p) {
    for (uint32_t l = 0; l < peers_[p].lane_count; ++l) {
      Lane& lane = LaneOf({p, l});
      if (!lane.full || !has_room({p, l})) continue;
      lane.full = false;
      changed_ = true;
    }
  }
}

void SendSchedule::Release(uint32_t id) {
  const uint32_t entry = std::exchange(held_[id], kNone);
  if (entry == kNone || phase_ != Phase::kSending) return;
  MakeReady(entry);
  changed_ = true;
}

void SendSchedule::OnScalesKnown() {
  if (!std::exchange(scales_known_, true)) changed_ = true;
}

void SendSchedule::OnTradeQuiet() {
  if (!std::exchange(trade_quiet_, true)) changed_ = true;
}

void SendSchedule::AllowFinish() {
  if (finish_ == Finish::kRefused) return;
  finish_ = Finish::kAllowed;
  changed_ = true;
}

void SendSchedule::RefuseFinish() { finish_ = Finish::kRefused; }

bool SendSchedule::OnPeerFailed(uint32_t p) {
  Peer& peer = peers_[p];
  changed_ = true;
  peer.failed = true;
  return !peer.closed && peer.stores_active == 0 && peer.staging == 0;
}

void SendSchedule::OnClosed(uint32_t peer) {
  peers_[peer].closed = true;
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].state != Slot::State::kFree && slots_[s].lane.peer == peer) FreeSlot(s);
  }
  for (Lane& lane : LanesOf(peers_[peer])) lane.posts_outstanding = lane.direct_posts = 0;
  changed_ = true;
}

void SendSchedule::Abort() {
  if (phase_ != Phase::kSending) trade_quiet_ = false;
  phase_ = Phase::kStopping;
  stores_ = {};
  for (Peer& peer : peers_) {
    peer.stores_active = peer.staging = 0;
    peer.digesting = false;
  }
  for (Lane& lane : lanes_) lane.ready = lane.direct = {};
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    const Slot::State state = slots_[s].state;
    if (state == Slot::State::kStaging || state == Slot::State::kWritten) FreeSlot(s);
  }
  changed_ = true;
}

uint32_t SendSchedule::posts_outstanding(uint32_t peer) const {
  uint32_t posts = 0;
  for (uint32_t l = 0; l < peers_[peer].lane_count; ++l) {
    posts += lanes_[peers_[peer].first_lane + l].posts_outstanding;
  }
  return posts;
}

// --- slots and queues ---

uint32_t SendSchedule::TakeSlot(SendLane lane) {
  const uint32_t slot = pool_.Take();
  slots_[slot] = {.state = Slot::State::kStaging, .lane = lane};
  ++peers_[lane.peer].slots;
  peers_[lane.peer].served = ++turn_;
  ++LaneOf(lane).slots;
  return slot;
}

void SendSchedule::FreeSlot(uint32_t slot) {
  if (slots_[slot].state == Slot::State::kWritten) --written_;
  slots_[slot].state = Slot::State::kFree;
  --peers_[slots_[slot].lane.peer].slots;
  --LaneOf(slots_[slot].lane).slots;
  pool_.Free(slot);
}

void SendSchedule::Push(Queue& queue, uint32_t entry) {
  (queue.head == kNone ? queue.head : entries_[queue.tail].next) = entry;
  queue.tail = entry;
}

uint32_t SendSchedule::Pop(Queue& queue) {
  const uint32_t entry = queue.head;
  if (entry != kNone) queue.head = entries_[entry].next;
  return entry;
}

}  // namespace waybill
