// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

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

}  // namespace

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(Verbs* verbs, Nic* nic, ibv_cq* sends,
                                                             ibv_cq* receives,
                                                             const QueuePairOptions& options,
                                                             unsigned access,
                                                             absl::string_view peer) {
  std::unique_ptr<QueuePair> made(new QueuePair(verbs, nic, options, peer));
  WAYBILL_RETURN_IF_ERROR(made->Make(sends, receives));
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = 0;
  init.port_num = nic->port();
  init.qp_access_flags = access;
  WAYBILL_RETURN_IF_ERROR(made->Modify(
      init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"));
  return made;
}

QueuePair::~QueuePair() {
  if (queue_pair_ != nullptr) verbs_.DestroyQp(queue_pair_);
}

absl::Status QueuePair::Make(ibv_cq* sends, ibv_cq* receives) {
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t random, RandomBits());
  first_packet_ = random & 0xFF'FFFF;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = sends;
  attributes.recv_cq = receives;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {.max_send_wr = options_.sends,
                    .max_recv_wr = options_.receives,
                    .max_send_sge = 2,  // A bounced piece has its header before it.
                    .max_recv_sge = 1,
                    .max_inline_data = kWantedInlineBytes};
  queue_pair_ = verbs_.CreateQp(nic_.device().pd(), &attributes);
  if (queue_pair_ == nullptr && errno != ENOMEM) {  // Some devices refuse to send inline.
    attributes.cap.max_inline_data = 0;
    queue_pair_ = verbs_.CreateQp(nic_.device().pd(), &attributes);
  }
  if (queue_pair_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("ibv_create_qp of ", nic_.name(), " for ",
                                                     peer_, ": ", std::strerror(errno), " (errno ",
                                                     errno, "); ", nic_.device().WhatIsFull()));
  }
  inline_bytes_ = attributes.cap.max_inline_data;
  return absl::OkStatus();
}

LaneAddress QueuePair::Address() const {
  return {.nic = nic_.name(),
          .queue_pair = number(),
          .first_packet = first_packet_,
          .mtu = static_cast<uint32_t>(nic_.attributes().active_mtu),
          .lid = nic_.attributes().lid,
          .gid = nic_.gid().entry.gid,
          .kind = nic_.gid().entry.kind};
}

absl::StatusOr<QueuePair::Plan> QueuePair::PlanTo(const LaneAddress& peer) const {
  // The queue pairs would connect, and packets of one kind are dropped by ports of another.
  if (peer.kind != nic_.gid().entry.kind) {
    return absl::UnavailableError(
        absl::StrCat(nic_.name(), " has a GID of ", Name(nic_.gid().entry.kind), ", and ", peer.nic,
                     " of ", peer_, " one of ", Name(peer.kind),
                     ": use GIDs of one kind (`waybill doctor` lists them)"));
  }
  Plan plan;
  ibv_qp_attr& receive = plan.receive;
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu =
      static_cast<ibv_mtu>(std::min(peer.mtu, static_cast<uint32_t>(nic_.attributes().active_mtu)));
  receive.dest_qp_num = peer.queue_pair;
  receive.rq_psn = peer.first_packet;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = kMinRnrTimer;
  receive.ah_attr.dlid = peer.lid;
  receive.ah_attr.port_num = nic_.port();
  if (nic_.is_ethernet() || peer.lid == 0) {
    receive.ah_attr.is_global = 1;
    std::memcpy(receive.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    receive.ah_attr.grh.sgid_index = static_cast<uint8_t>(nic_.gid().entry.index);
    receive.ah_attr.grh.hop_limit = kHopLimit;
    receive.ah_attr.grh.traffic_class = options_.traffic_class;
    // Lanes of a pair that differ in it can take different paths through the network.
    receive.ah_attr.grh.flow_label = (number() * 0x9E37'79B1u ^ peer.queue_pair) & 0xF'FFFF;
  }
  ibv_qp_attr& send = plan.send;
  send.qp_state = IBV_QPS_RTS;
  send.timeout = options_.ack_timeout != 0     ? options_.ack_timeout
                 : nic_.device().is_software() ? kSoftwareAckTimeout
                                               : kHardwareAckTimeout;
  send.retry_cnt = options_.retry_count;
  send.rnr_retry = kInfiniteRnrRetry;
  send.sq_psn = first_packet_;
  send.max_rd_atomic = 1;
  return plan;
}

absl::Status QueuePair::Connect(const Plan& plan) {
  WAYBILL_RETURN_IF_ERROR(Modify(plan.receive,
                                 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                     IBV_QP_MIN_RNR_TIMER,
                                 "RTR"));
  return Modify(plan.send,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

absl::Status QueuePair::Modify(ibv_qp_attr attributes, int mask, absl::string_view state) {
  const int error = verbs_.ModifyQp(queue_pair_, &attributes, mask);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("queue pair ", number(), " of ", nic_.name(), " for ",
                                             peer_, " to ", state, ": ", std::strerror(error),
                                             " (errno ", error, ")"));
}

}  // namespace waybill::verbs
