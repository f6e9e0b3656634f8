// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/verbs_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/path_failure.h"

namespace waybill::verbs {
namespace {

constexpr size_t kMostNameBytes = 1000;

LaneSettings WithinLimits(LaneSettings settings, const Nic& nic) {
  const auto most = static_cast<uint32_t>(std::max(nic.device().limits().max_qp_wr, 1));
  settings.limits.depth = std::min(settings.limits.depth, most);
  settings.limits.chain = std::min(settings.limits.chain, settings.limits.depth);
  settings.limits.message_bytes =
      std::min<uint64_t>(settings.limits.message_bytes, nic.attributes().max_msg_sz);
  settings.queue_pair.sends = settings.limits.depth;
  settings.queue_pair.receives = std::min(settings.queue_pair.receives, most);
  return settings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsLane>> VerbsLane::Create(Verbs* verbs, uint32_t id,
                                                             absl::string_view peer, Nic* nic,
                                                             CompletionQueues* queues,
                                                             const LaneSettings& settings,
                                                             SendCounts* counts) {
  std::unique_ptr<VerbsLane> lane(
      new VerbsLane(verbs, id, peer, nic, queues, WithinLimits(settings, *nic), counts));
  WAYBILL_RETURN_IF_ERROR(lane->MakeQueuePair());
  WAYBILL_RETURN_IF_ERROR(lane->RefillReceives());
  return lane;
}

absl::Status VerbsLane::MakeQueuePair() {
  WAYBILL_ASSIGN_OR_RETURN(pair_, queues_.Take(cq_entries()));
  WAYBILL_ASSIGN_OR_RETURN(queue_pair_,
                           QueuePair::Create(&verbs_, &nic_, pair_->send, pair_->receive,
                                             settings_.queue_pair, IBV_ACCESS_REMOTE_WRITE, peer_));
  address_ = queue_pair_->Address();
  sends_.AllowInline(queue_pair_->inline_bytes());
  return absl::OkStatus();
}

LaneAddress VerbsLane::Address() const {
  LaneAddress address = address_;
  address.rendezvous = rendezvous;
  return address;
}

absl::StatusOr<std::function<absl::Status()>> VerbsLane::PlanConnect(
    const LaneAddress& peer) const {
  WAYBILL_ASSIGN_OR_RETURN(const QueuePair::Plan plan, queue_pair_->PlanTo(peer));
  return [queue_pair = queue_pair_.get(), plan] { return queue_pair->Connect(plan); };
}

std::string VerbsLane::DescribePath() const {
  return absl::StrCat("verbs: ", nic_.name(), " (", ToString(nic_.gid().entry.gid), ") to ",
                      peer_address
                          ? absl::StrCat(peer_address->nic, " (", ToString(peer_address->gid), ")")
                          : std::string("nobody yet"));
}

void VerbsLane::Arrived(uint32_t immediate, std::vector<FabricEvent>& events) {
  if (!std::exchange(probe_came_, true)) return CheckConnected(events);
  if (connected_) {
    events.push_back({FabricEvent::Kind::kImmediate, LaneId{id_}, 0, immediate});
  } else {
    early_.push_back(immediate);
  }
}

void VerbsLane::Completed(uint64_t token, std::vector<FabricEvent>& events) {
  if (!std::exchange(probe_done_, true)) return CheckConnected(events);
  events.push_back({FabricEvent::Kind::kComplete, LaneId{id_}, token});
}

void VerbsLane::CheckConnected(std::vector<FabricEvent>& events) {
  if (!probe_done_ || !probe_came_) return;
  connected_ = true;
  events.push_back({.kind = FabricEvent::Kind::kConnected, .lane = LaneId{id_}});
  for (const uint32_t immediate : early_) {
    events.push_back({FabricEvent::Kind::kImmediate, LaneId{id_}, 0, immediate});
  }
  early_.clear();
}

bool VerbsLane::CountReceive(uint64_t wr_id) {
  if (static_cast<uint32_t>(wr_id) != receives_taken_) return false;
  ++receives_taken_;
  ++receives_used_;
  return true;
}

absl::Status VerbsLane::RefillReceives() {
  if (receives_used_ == 0 || queue_pair_ == nullptr) return absl::OkStatus();
  for (uint32_t i = 0; i < receives_used_; ++i) {
    receive_requests_[i] = {};
    receive_requests_[i].wr_id = uint64_t{id_} << 32 | receives_posted_++;
    receive_requests_[i].next = i + 1 < receives_used_ ? &receive_requests_[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  const int error = verbs_.PostRecv(queue_pair(), receive_requests_.data(), &bad);
  if (error != 0) {
    return absl::InternalError(absl::StrCat("ibv_post_recv: ", std::strerror(error)));
  }
  receives_used_ = 0;
  return absl::OkStatus();
}

// Full packets, and more than one: where the MTUs of the two ends differ, switches drop long
// packets or pass only some classes, an empty write gets through and no data does.
bool VerbsLane::PostProbe(const ProbeBody& to) {
  if (probe_posted_ || (to.size_bytes != 0 && to.size_bytes != kProbeBytes)) return false;
  probe_posted_ = true;
  RemoteWrite write;
  if (probe && to.size_bytes > 0) {
    FillProbe(probe->outgoing, address_.queue_pair);
    write = {.local_address = reinterpret_cast<uintptr_t>(probe->outgoing),
             .remote_address = to.address,
             .size_bytes = to.size_bytes,
             .local_key = probe->local_key,
             .remote_key = to.remote_key};
  }
  sends_.Append({&write, 1}, static_cast<uint32_t>(write.size_bytes), /*token=*/0);
  return true;
}

absl::Status VerbsLane::CheckProbe(uint32_t immediate) const {
  if (immediate == 0 || !probe || !peer_address) return absl::OkStatus();
  const uint32_t errors = CountProbeErrors(probe->incoming, peer_address->queue_pair);
  if (errors == 0) return absl::OkStatus();
  return AsPathFailure(absl::DataLossError(absl::StrCat(
      DescribePath(), ": ", errors, " bytes of ", kProbeBytes, " arrived damaged or not at all")));
}

absl::Status VerbsLane::FailureOf(const ibv_wc& done) const {
  const std::string what = absl::StrCat(
      DescribePath(), ", queue pair ", address_.queue_pair, ": ", verbs_.StatusText(done.status),
      " (status ", static_cast<int>(done.status), ", vendor ", absl::Hex(done.vendor_err), ")");
  switch (done.status) {
    case IBV_WC_REM_ACCESS_ERR:
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": the region's key is not valid at the peer any more"));
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
      return absl::InternalError(what);
    case IBV_WC_WR_FLUSH_ERR:
      return absl::UnavailableError(what);
    default:
      return AsPathFailure(absl::UnavailableError(what));
  }
}

std::string VerbsLane::GrantOf(const OwnRegion& region, size_t device) {
  const absl::string_view name = absl::string_view(region.name).substr(0, kMostNameBytes);
  GrantBody body{.key = region.key,
                 .size_bytes = region.memory.size_bytes,
                 .is_bounced = region.bounced ? uint16_t{1} : uint16_t{0},
                 .name_bytes = static_cast<uint16_t>(name.size())};
  if (!region.bounced) {
    body.address = reinterpret_cast<uintptr_t>(region.memory.data);
    body.remote_key = region.registrations[device]->rkey;
  }
  return absl::StrCat(Packed(body), name);
}

bool VerbsLane::TakeGrants(absl::string_view frame) {
  do {
    GrantBody body;
    if (frame.size() < sizeof(body)) return false;
    std::memcpy(&body, frame.data(), sizeof(body));
    frame.remove_prefix(sizeof(body));
    if (body.name_bytes > frame.size()) return false;
    if (body.is_bounced != 0 && !sends_.may_bounce()) return false;
    granted_by_peer[body.key] = {.address = body.address,
                                 .size_bytes = body.size_bytes,
                                 .remote_key = body.remote_key,
                                 .bounced = body.is_bounced != 0,
                                 .name = std::string(frame.substr(0, body.name_bytes))};
    frame.remove_prefix(body.name_bytes);
  } while (!frame.empty());
  return true;
}

absl::Status VerbsLane::MakeRing() {
  if (ring_ != nullptr) return absl::OkStatus();
  WAYBILL_ASSIGN_OR_RETURN(ring_, BounceRing::Create(&verbs_, nic_.device(), settings_.bounce));
  sends_.UseRing(ring_.get());
  return absl::OkStatus();
}

std::optional<PeerRing> VerbsLane::TakeNewsOfRing() {
  if (std::exchange(ring_told_, true)) return std::nullopt;
  return ring_->incoming();
}

bool VerbsLane::TakePeerRing(absl::string_view frame) {
  PeerRing ring;
  if (sends_.may_bounce() || frame.size() != sizeof(ring)) return false;
  std::memcpy(&ring, frame.data(), sizeof(ring));
  if (ring.slots == 0 || ring.slot_bytes == 0) return false;
  sends_.BounceAt(ring);
  return true;
}

absl::Status VerbsLane::TakePiece(Regions& regions) {
  if (!ring_told_) return absl::PermissionDeniedError("a bounced write, without a ring for it");
  const std::byte* slot = ring_->Incoming(pieces_came_++);
  BouncedHeader header;
  std::memcpy(&header, slot, sizeof(header));
  if (header.size_bytes > settings_.bounce.slot_bytes) {
    return absl::OutOfRangeError(absl::StrCat("a bounced piece of ", header.size_bytes, " bytes; ",
                                              settings_.bounce.slot_bytes, " are allowed"));
  }
  return regions.Deliver(LaneId{id_}, header, slot + kBouncedHeaderBytes);
}

std::optional<uint64_t> VerbsLane::TakeDelivered() {
  if (side.has_unsent() || pieces_told_ == pieces_came_) return std::nullopt;
  return pieces_told_ = pieces_came_;
}

void VerbsLane::Quiesce() {
  queue_pair_ = nullptr;
  ring_ = nullptr;
  if (pair_ != nullptr) queues_.Return(pair_, cq_entries());
  pair_ = nullptr;
}

}  // namespace waybill::verbs
