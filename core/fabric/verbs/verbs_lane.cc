#include "core/fabric/verbs/verbs_lane.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random_bits.h"
#include "core/base/status.h"

namespace waybill::verbs {
namespace {

constexpr uint8_t kInfiniteRnrRetry = 7;  // A receiver that is slow is not dead.
constexpr uint8_t kMinRnrTimer = 12;      // 0.64 ms.
constexpr uint8_t kHopLimit = 64;
constexpr uint32_t kWantedInlineBytes = 64;
constexpr uint8_t kHardwareAckTimeout = 14;
constexpr uint8_t kSoftwareAckTimeout = 18;

QueuePairSettings WithinLimits(QueuePairSettings settings, const Nic& nic) {
  const auto most = static_cast<uint32_t>(std::max(nic.device().limits().max_qp_wr, 1));
  settings.limits.depth = std::min(settings.limits.depth, most);
  settings.limits.chain = std::min(settings.limits.chain, settings.limits.depth);
  settings.limits.message_bytes =
      std::min<uint64_t>(settings.limits.message_bytes, nic.attributes().max_msg_sz);
  settings.receives = std::min(settings.receives, most);
  if (settings.ack_timeout == 0) {
    settings.ack_timeout = nic.device().is_software() ? kSoftwareAckTimeout : kHardwareAckTimeout;
  }
  return settings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsLane>> VerbsLane::Create(Verbs* verbs, uint32_t id,
                                                             absl::string_view peer, Nic* nic,
                                                             CompletionQueues* queues,
                                                             const QueuePairSettings& settings,
                                                             SendCounts* counts) {
  std::unique_ptr<VerbsLane> lane(
      new VerbsLane(verbs, id, peer, nic, queues, WithinLimits(settings, *nic), counts));
  WAYBILL_RETURN_IF_ERROR(lane->CreateQueuePair());
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = 0;
  init.port_num = nic->port();
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  WAYBILL_RETURN_IF_ERROR(lane->Modify(
      init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"));
  WAYBILL_RETURN_IF_ERROR(lane->RefillReceives());
  return lane;
}

absl::Status VerbsLane::CreateQueuePair() {
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t random, RandomBits());
  first_packet_ = random & 0xFF'FFFF;
  WAYBILL_ASSIGN_OR_RETURN(pair_, queues_.Take(cq_entries()));
  ibv_qp_init_attr attributes{};
  attributes.send_cq = pair_->send;
  attributes.recv_cq = pair_->receive;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {.max_send_wr = settings_.limits.depth,
                    .max_recv_wr = settings_.receives,
                    .max_send_sge = 2,  // A bounced piece has its header before it.
                    .max_recv_sge = 1,
                    .max_inline_data = kWantedInlineBytes};
  queue_pair_ = verbs_.CreateQp(nic_.device().pd(), &attributes);
  if (queue_pair_ == nullptr && errno != ENOMEM) {  // Some devices refuse to send inline.
    attributes.cap.max_inline_data = 0;
    queue_pair_ = verbs_.CreateQp(nic_.device().pd(), &attributes);
  }
  if (queue_pair_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "ibv_create_qp of ", nic_.name(), " for ", peer_, ": ", std::strerror(errno), " (errno ",
        errno, "); the device has at most ", nic_.device().limits().max_qp, " queue pairs"));
  }
  number_ = queue_pair_->qp_num;
  sends_.AllowInline(attributes.cap.max_inline_data);
  return absl::OkStatus();
}

LaneAddress VerbsLane::Address() const {
  return {.rendezvous = rendezvous,
          .nic = nic_.name(),
          .queue_pair = number_,
          .first_packet = first_packet_,
          .mtu = static_cast<uint32_t>(nic_.attributes().active_mtu),
          .lid = nic_.attributes().lid,
          .gid = nic_.gid().entry.gid};
}

absl::Status VerbsLane::ConnectTo(const LaneAddress& peer) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu =
      static_cast<ibv_mtu>(std::min(peer.mtu, static_cast<uint32_t>(nic_.attributes().active_mtu)));
  receive.dest_qp_num = peer.queue_pair;
  receive.rq_psn = peer.first_packet;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = kMinRnrTimer;
  receive.ah_attr.dlid = peer.lid;
  receive.ah_attr.sl = settings_.service_level;
  receive.ah_attr.port_num = nic_.port();
  if (nic_.is_ethernet() || peer.lid == 0) {
    receive.ah_attr.is_global = 1;
    std::memcpy(receive.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    receive.ah_attr.grh.sgid_index = static_cast<uint8_t>(nic_.gid().entry.index);
    receive.ah_attr.grh.hop_limit = kHopLimit;
    receive.ah_attr.grh.traffic_class = settings_.traffic_class;
    // Lanes of a pair that differ in it can take different paths through the network.
    receive.ah_attr.grh.flow_label = (number_ * 0x9E37'79B1u ^ peer.queue_pair) & 0xF'FFFF;
  }
  WAYBILL_RETURN_IF_ERROR(Modify(receive,
                                 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                     IBV_QP_MIN_RNR_TIMER,
                                 "RTR"));
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = settings_.ack_timeout;
  send.retry_cnt = settings_.retry_count;
  send.rnr_retry = kInfiniteRnrRetry;
  send.sq_psn = first_packet_;
  send.max_rd_atomic = 1;
  WAYBILL_RETURN_IF_ERROR(Modify(send,
                                 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                                 "RTS"));
  peer_address = peer;
  return absl::OkStatus();
}

absl::Status VerbsLane::Modify(ibv_qp_attr& attributes, int mask, absl::string_view state) {
  const int error = verbs_.ModifyQp(queue_pair_, &attributes, mask);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("queue pair ", number_, " of ", nic_.name(), " for ",
                                             peer_, " to ", state, ": ", std::strerror(error),
                                             " (errno ", error, ")"));
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
  const int error = verbs_.PostRecv(queue_pair_, receive_requests_.data(), &bad);
  if (error != 0) {
    return absl::InternalError(absl::StrCat("ibv_post_recv: ", std::strerror(error)));
  }
  receives_used_ = 0;
  return absl::OkStatus();
}

absl::Status VerbsLane::FailureOf(const ibv_wc& done) const {
  const std::string what = absl::StrCat(
      DescribePath(), ", queue pair ", number_, ": ", verbs_.StatusText(done.status), " (status ",
      static_cast<int>(done.status), ", vendor ", absl::Hex(done.vendor_err), ")");
  switch (done.status) {
    case IBV_WC_REM_ACCESS_ERR:
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": the region's key is not valid at the peer any more"));
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
      return absl::InternalError(what);
    default:
      return absl::UnavailableError(what);
  }
}

std::string VerbsLane::GrantOf(const OwnRegion& region, size_t device) {
  GrantBody body{.key = region.key,
                 .size_bytes = region.memory.size_bytes,
                 .is_bounced = region.bounced ? 1u : 0u};
  if (!region.bounced) {
    body.address = reinterpret_cast<uintptr_t>(region.memory.data);
    body.remote_key = region.registrations[device]->rkey;
  }
  return absl::StrCat(Packed(body), region.name);
}

bool VerbsLane::TakeGrant(absl::string_view frame) {
  GrantBody body;
  if (frame.size() < sizeof(body)) return false;
  std::memcpy(&body, frame.data(), sizeof(body));
  if (body.is_bounced != 0 && !sends_.may_bounce()) return false;
  granted_by_peer[body.key] = {.address = body.address,
                               .size_bytes = body.size_bytes,
                               .remote_key = body.remote_key,
                               .bounced = body.is_bounced != 0,
                               .name = std::string(frame.substr(sizeof(body)))};
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
  if (queue_pair_ != nullptr) verbs_.DestroyQp(queue_pair_);
  queue_pair_ = nullptr;
  ring_ = nullptr;
  if (pair_ != nullptr) queues_.Return(pair_, cq_entries());
  pair_ = nullptr;
}

}  // namespace waybill::verbs
