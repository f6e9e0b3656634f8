// SPDX-License-Identifier: Apache-2.0

#include "core/engine/maxima_exchange.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/narrow.h"
#include "core/base/status.h"
#include "kernels/digest.h"

namespace waybill {
namespace {

constexpr uint64_t kGrantedToken = ~uint64_t{0};
constexpr uint64_t kMessageToken = 0;
constexpr uint64_t kSlotAlignment = 64;

// A message's place in a mailbox or in the outbox.
uint64_t SlotBytes(const MaximaMessage& message) {
  return RoundUp(sizeof(MaximaHeader) + uint64_t{message.block_count()} * sizeof(float),
                 kSlotAlignment);
}

// The two mailboxes are interleaved, message by message.
uint64_t MailboxOffset(const MaximaMessage& message, uint32_t sequence) {
  return 2 * message.mailbox_offset_bytes + (sequence & 1) * SlotBytes(message);
}

}  // namespace

const Exchange MaximaExchange::kNothing;

MaximaExchange::~MaximaExchange() { Release(); }

void MaximaExchange::Release() {
  for (const CoOwner& peer : peers_) (void)fabric_.CloseLane(peer.lane);
  peers_.clear();
  for (Region* region : {&mailbox_, &outbox_}) {
    if (region->id != RegionId::kNone) (void)fabric_.Release(region->id);
    *region = {};
  }
  mailbox_descriptor_.clear();
  exchange_ = &kNothing;
}

absl::StatusOr<std::vector<LaneOffer>> MaximaExchange::SetPlan(const Exchange* exchange,
                                                               std::deque<ScaleValues>* values) {
  Release();
  exchange_ = exchange;
  values_ = values;
  sent_ = exchange->outgoing.size();
  taken_ = exchange->incoming.size();
  std::set<uint32_t> senders;
  uint32_t most_blocks = 0;
  uint64_t outbox_bytes = 0;
  outbox_offsets_.clear();
  for (const MaximaMessage& message : exchange->outgoing) {
    outbox_offsets_.push_back(outbox_bytes);
    most_blocks = std::max(most_blocks, message.block_count());
    if (message.into.empty()) {
      senders.insert(message.peer);
      outbox_bytes += SlotBytes(message);
    }
  }
  for (const MaximaMessage& message : exchange->incoming) {
    senders.insert(message.peer);
    most_blocks = std::max(most_blocks, message.block_count());
  }
  scratch_.resize(most_blocks);
  std::vector<LaneOffer> offers;
  if (senders.empty()) return offers;
  const uint64_t mailbox_bytes = std::max<uint64_t>(2 * exchange->mailbox_bytes, kSlotAlignment);
  WAYBILL_ASSIGN_OR_RETURN(mailbox_, fabric_.Allocate(mailbox_bytes, "mailbox of maxima"));
  WAYBILL_ASSIGN_OR_RETURN(
      outbox_, fabric_.Allocate(std::max(outbox_bytes, kSlotAlignment), "maxima to be sent"));
  WAYBILL_ASSIGN_OR_RETURN(mailbox_descriptor_, fabric_.Describe(mailbox_.id));
  for (const uint32_t sender : senders) {
    CoOwner& peer = peers_.emplace_back();
    peer.sender = sender;
    for (uint32_t i = 0; i < exchange->incoming.size(); ++i) {
      if (exchange->incoming[i].peer == sender) peer.incoming.push_back(i);
    }
    WAYBILL_ASSIGN_OR_RETURN(peer.lane,
                             fabric_.OpenLane(absl::StrCat("trainer ", sender), /*nic=*/""));
    WAYBILL_ASSIGN_OR_RETURN(std::string address, fabric_.LaneAddress(peer.lane));
    offers.push_back({sender, std::move(address)});
  }
  return offers;
}

MaximaExchange::CoOwner& MaximaExchange::Find(uint32_t sender) {
  return *std::find_if(peers_.begin(), peers_.end(),
                       [&](const CoOwner& peer) { return peer.sender == sender; });
}

absl::Status MaximaExchange::Connect(absl::Span<const CoOwnerAddress> co_owners) {
  for (CoOwner& peer : peers_) {
    const auto known =
        std::find_if(co_owners.begin(), co_owners.end(),
                     [&](const CoOwnerAddress& a) { return a.sender == peer.sender; });
    if (known == co_owners.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("trainer ", peer.sender, ", which owns blocks with this one, has no lane"));
    }
    peer.mailbox_address = known->mailbox;
    WAYBILL_RETURN_IF_ERROR(fabric_.ConnectLane(peer.lane, known->lane_address));
  }
  return absl::OkStatus();
}

bool MaximaExchange::up() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const CoOwner& peer) { return peer.up; });
}

std::vector<LaneReport> MaximaExchange::AddTo(std::vector<LaneReport> reports) const {
  for (const CoOwner& peer : peers_) {
    reports.push_back({peer.sender, fabric_.DescribeLane(peer.lane), /*co_owner=*/true});
  }
  return reports;
}

bool MaximaExchange::Handle(const FabricEvent& event) {
  for (CoOwner& peer : peers_) {
    if (peer.lane != event.lane) continue;
    if (!peer.failed) Handle(peer, event);
    return true;
  }
  return false;
}

void MaximaExchange::Handle(CoOwner& peer, const FabricEvent& event) {
  switch (event.kind) {
    case FabricEvent::Kind::kConnected:
      if (absl::Status status = Grant(peer); !status.ok()) Fail(peer, std::move(status));
      return;
    case FabricEvent::Kind::kImmediate: {
      const Immediate immediate = Immediate::Unpack(event.immediate);
      if (immediate.kind == Immediate::Kind::kGranted) return Answer(peer);
      if (immediate.kind != Immediate::Kind::kMaxima) return;
      if (peer.arrived_sequence == immediate.sequence) {
        ++peer.arrived;
      } else if (peer.arrived == 0 || IsLater(immediate.sequence, peer.arrived_sequence)) {
        peer.arrived_sequence = immediate.sequence;
        peer.arrived = 1;
      }
      return;
    }
    case FabricEvent::Kind::kComplete:
      if (event.token == kMessageToken) --peer.posts_outstanding;
      return;
    case FabricEvent::Kind::kFailed:
      return Fail(peer, fabric_.LaneStatus(peer.lane));
  }
}

// Grants the mailbox to the co-owner, then sends kGranted.
absl::Status MaximaExchange::Grant(const CoOwner& peer) {
  WAYBILL_RETURN_IF_ERROR(fabric_.Grant(peer.lane, mailbox_.id));
  WAYBILL_RETURN_IF_ERROR(fabric_.Grant(peer.lane, outbox_.id));
  return fabric_.Post(peer.lane, {}, Immediate{Immediate::Kind::kGranted}.Pack(), kGrantedToken);
}

void MaximaExchange::Answer(CoOwner& peer) {
  if (peer.up) return;
  absl::StatusOr<RemoteRegionId> mailbox = fabric_.Import(peer.lane, peer.mailbox_address);
  if (!mailbox.ok()) return Fail(peer, mailbox.status());
  peer.mailbox = *mailbox;
  peer.up = true;
}

void MaximaExchange::Fail(CoOwner& peer, absl::Status status) {
  if (std::exchange(peer.failed, true)) return;
  (void)fabric_.CloseLane(peer.lane);
  peer.posts_outstanding = 0;
  failed_(peer.sender, WithScope(std::move(status), Scope::kPeer));
}

// --- one update ---

void MaximaExchange::Begin(const UpdateId& update) {
  update_ = update;
  sent_ = 0;
  taken_ = 0;
  for (CoOwner& peer : peers_) peer.taken = 0;
}

void MaximaExchange::Step(TransferCounts& counts) {
  for (CoOwner& peer : peers_) TakeArrived(peer);
  while (sent_ < exchange_->outgoing.size() && CanSend(exchange_->outgoing[sent_]) &&
         Send(static_cast<uint32_t>(sent_), counts)) {
    ++sent_;
  }
}

// Returns true if all incoming messages of earlier steps have arrived.
bool MaximaExchange::CanSend(const MaximaMessage& message) const {
  for (const CoOwner& peer : peers_) {
    if (peer.taken < peer.incoming.size() &&
        exchange_->incoming[peer.incoming[peer.taken]].step < message.step) {
      return false;
    }
  }
  return true;
}

bool MaximaExchange::Send(uint32_t index, TransferCounts& counts) {
  const MaximaMessage& message = exchange_->outgoing[index];
  uint32_t count = 0;
  for (const BlockRun& run : message.runs) {
    for (uint32_t b = 0; b < run.count; ++b) {
      scratch_[count++] = (*values_)[run.table].maximum(run.first + b);
    }
  }
  if (!message.into.empty()) {
    CombineHere(message);
    return true;
  }
  CoOwner& peer = Find(message.peer);
  if (peer.failed) return false;
  const MaximaHeader header = {.sequence = LedgerSequence(update_),
                               .digest = kernels::Digest(scratch_.data(), count * sizeof(float))};
  std::byte* slot = outbox_.memory.data + outbox_offsets_[index];
  std::memcpy(slot, &header, sizeof(header));
  std::memcpy(slot + sizeof(header), scratch_.data(), count * sizeof(float));
  const Write write = {.source = outbox_.id,
                       .source_offset_bytes = outbox_offsets_[index],
                       .destination = peer.mailbox,
                       .destination_offset_bytes = MailboxOffset(message, update_.sequence),
                       .size_bytes = sizeof(header) + count * sizeof(float)};
  const absl::Status status =
      fabric_.Post(peer.lane, {&write, 1},
                   Immediate{Immediate::Kind::kMaxima, update_.sequence}.Pack(), kMessageToken);
  if (absl::IsResourceExhausted(status)) return false;  // The lane is full; Step() tries again.
  if (!status.ok()) {
    Fail(peer, status);
    return false;
  }
  ++peer.posts_outstanding;
  ++counts.maxima_messages;
  counts.maxima_bytes += write.size_bytes;
  return true;
}

void MaximaExchange::TakeArrived(CoOwner& peer) {
  if (peer.arrived_sequence != update_.sequence) return;
  while (peer.taken < peer.incoming.size() && peer.taken < peer.arrived &&
         Take(exchange_->incoming[peer.incoming[peer.taken]])) {
    ++peer.taken;
    ++taken_;
  }
}

// Returns false if the message is not in the mailbox: an immediate arrived twice, or the message
// belongs to another update.
bool MaximaExchange::Take(const MaximaMessage& message) {
  const std::byte* slot = mailbox_.memory.data + MailboxOffset(message, update_.sequence);
  MaximaHeader header;
  std::memcpy(&header, slot, sizeof(header));
  const uint32_t count = message.block_count();
  std::memcpy(scratch_.data(), slot + sizeof(header), count * sizeof(float));
  if (header.sequence != LedgerSequence(update_) ||
      header.digest != kernels::Digest(scratch_.data(), count * sizeof(float))) {
    return false;
  }
  uint32_t at = 0;
  for (const BlockRun& run : message.runs) {
    for (uint32_t b = 0; b < run.count; ++b) {
      (*values_)[run.table].CombineMaximum(run.first + b, scratch_[at++]);
    }
  }
  return true;
}

void MaximaExchange::CombineHere(const MaximaMessage& message) {
  uint32_t at = 0;
  for (const BlockRun& run : message.into) {
    for (uint32_t b = 0; b < run.count; ++b) {
      (*values_)[run.table].CombineMaximum(run.first + b, scratch_[at++]);
    }
  }
}

uint32_t MaximaExchange::posts_outstanding() const {
  uint32_t posts = 0;
  for (const CoOwner& peer : peers_) posts += peer.posts_outstanding;
  return posts;
}

void MaximaExchange::StopNow() {
  for (CoOwner& peer : peers_) {
    if (!peer.failed && peer.posts_outstanding > 0) {
      Fail(peer, absl::CancelledError("it was stopped with writes outstanding"));
    }
  }
}

}  // namespace waybill
