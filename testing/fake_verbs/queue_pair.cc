// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "testing/fake_verbs/completion_queue.h"
#include "testing/fake_verbs/device.h"

namespace waybill::fake_verbs {
namespace {

constexpr int kToInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kToSend = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr uint32_t kPacketNumbers = 0xFF'FFFF;

}  // namespace

QueuePair::QueuePair(Device* device, uint64_t identity, uint32_t number, ibv_pd* of,
                     const ibv_qp_init_attr& attributes)
    : ibv_qp{},
      device_(*device),
      identity_(identity),
      limits_(attributes.cap),
      signals_all_(attributes.sq_sig_all != 0) {
  context = of->context;
  pd = of;
  send_cq = attributes.send_cq;
  recv_cq = attributes.recv_cq;
  qp_num = number;
  qp_type = attributes.qp_type;
  state = IBV_QPS_RESET;
}

int QueuePair::Modify(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_STATE) == 0) return EINVAL;
  const ibv_qp_state to = attributes.qp_state;
  if (to == IBV_QPS_ERR) {
    if (state == IBV_QPS_RESET) return EINVAL;
    EnterError();
    return 0;
  }
  if (to == IBV_QPS_RESET) {
    sends_.clear();
    receives_.clear();
    retired_ = posted_;
    receives_retired_ = receives_posted_;
    state = IBV_QPS_RESET;
    return 0;
  }
  return MoveTo(to, attributes, mask);
}

int QueuePair::MoveTo(ibv_qp_state to, const ibv_qp_attr& attributes, int mask) {
  if (state == IBV_QPS_RESET && to == IBV_QPS_INIT) {
    if (mask != kToInit || device_.FindPort(attributes.port_num) == nullptr) return EINVAL;
    attributes_.port_num = attributes.port_num;
    attributes_.qp_access_flags = attributes.qp_access_flags;
  } else if (state == IBV_QPS_INIT && to == IBV_QPS_RTR) {
    if (mask != kToReceive) return EINVAL;
    const int error = device_.CheckPath(attributes_.port_num, attributes);
    if (error != 0) return error;
    attributes_.ah_attr = attributes.ah_attr;
    attributes_.path_mtu = attributes.path_mtu;
    attributes_.dest_qp_num = attributes.dest_qp_num;
    attributes_.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
    expected_packet = attributes.rq_psn & kPacketNumbers;
  } else if (state == IBV_QPS_RTR && to == IBV_QPS_RTS) {
    if (mask != kToSend || attributes.retry_cnt > 7 || attributes.rnr_retry > 7) return EINVAL;
    attributes_.retry_cnt = attributes.retry_cnt;
    attributes_.rnr_retry = attributes.rnr_retry;
    attributes_.max_rd_atomic = attributes.max_rd_atomic;
    next_packet = attributes.sq_psn & kPacketNumbers;
  } else {
    return EINVAL;
  }
  state = to;
  return 0;
}

int QueuePair::PostSend(ibv_send_wr* chain, ibv_send_wr** bad) {
  if (bad == nullptr) return EINVAL;  // As rxe has it.
  const std::optional<Refusal> refusal = std::exchange(refusal_, std::nullopt);
  uint32_t accepted = 0;
  for (ibv_send_wr* request = chain; request != nullptr; request = request->next) {
    const int error = refusal && accepted == refusal->accepted ? refusal->error : PostOne(*request);
    if (error != 0) {
      *bad = request;
      return error;
    }
    ++accepted;
  }
  return 0;
}

int QueuePair::PostOne(const ibv_send_wr& request) {
  if (device_.failed()) return EIO;
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) return EINVAL;
  const bool is_send = request.opcode == IBV_WR_SEND;
  const bool is_read = request.opcode == IBV_WR_RDMA_READ;
  if (request.opcode != IBV_WR_RDMA_WRITE && request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM &&
      !is_send && !is_read) {
    return EINVAL;
  }
  if (is_read && (attributes_.max_rd_atomic == 0 || (request.send_flags & IBV_SEND_INLINE) != 0)) {
    return EINVAL;
  }
  if (is_send && request.num_sge > 0) return EINVAL;  // Not simulated.
  if (request.num_sge < 0 || static_cast<uint32_t>(request.num_sge) > limits_.max_send_sge) {
    return EINVAL;
  }
  if (posted_ - retired_ >= limits_.max_send_wr) return ENOMEM;
  SendRequest taken{.index = posted_,
                    .wr_id = request.wr_id,
                    .signalled = signals_all_ || (request.send_flags & IBV_SEND_SIGNALED) != 0,
                    .is_send = is_send,
                    .is_read = is_read,
                    .remote_address = request.wr.rdma.remote_addr,
                    .remote_key = request.wr.rdma.rkey};
  if (request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) taken.immediate = request.imm_data;
  taken.pieces.assign(request.sg_list, request.sg_list + request.num_sge);
  for (const ibv_sge& piece : taken.pieces) taken.size_bytes += piece.length;
  if ((request.send_flags & IBV_SEND_INLINE) != 0) {
    if (taken.size_bytes > limits_.max_inline_data) return EINVAL;
    taken.inlined.emplace();
    for (const ibv_sge& piece : taken.pieces) {
      const auto* bytes = reinterpret_cast<const std::byte*>(piece.addr);
      taken.inlined->insert(taken.inlined->end(), bytes, bytes + piece.length);
    }
  }
  ++posted_;
  device_.Count(taken);
  if (state == IBV_QPS_ERR) {
    CompleteSend(taken, IBV_WC_WR_FLUSH_ERR);
  } else {
    sends_.push_back(std::move(taken));
  }
  return 0;
}

int QueuePair::PostReceive(ibv_recv_wr* chain, ibv_recv_wr** bad) {
  if (bad == nullptr) return EINVAL;
  for (ibv_recv_wr* request = chain; request != nullptr; request = request->next) {
    if (const int error = PostOne(*request); error != 0) {
      *bad = request;
      return error;
    }
  }
  return 0;
}

int QueuePair::PostOne(const ibv_recv_wr& request) {
  if (device_.failed()) return EIO;
  if (state == IBV_QPS_RESET) return EINVAL;
  if (request.num_sge < 0 || static_cast<uint32_t>(request.num_sge) > limits_.max_recv_sge) {
    return EINVAL;
  }
  if (receives_posted_ - receives_retired_ >= limits_.max_recv_wr) return ENOMEM;
  receives_.push_back({receives_posted_++, request.wr_id});
  if (state == IBV_QPS_ERR) EnterError();
  return 0;
}

std::optional<QueuePair::ScriptedFailure> QueuePair::ScriptedFailureOfHead() {
  const auto scripted = scripted_.find(sends_.front().index);
  if (scripted == scripted_.end()) return std::nullopt;
  return scripted->second;
}

void QueuePair::CompleteHead() {
  const SendRequest request = std::move(sends_.front());
  sends_.pop_front();
  if (request.signalled) CompleteSend(request, IBV_WC_SUCCESS);
}

void QueuePair::FailHead(ibv_wc_status status) {
  const SendRequest request = std::move(sends_.front());
  sends_.pop_front();
  CompleteSend(request, status);
  EnterError();
}

void QueuePair::CompleteSend(const SendRequest& request, ibv_wc_status status) {
  ibv_wc done;
  if (status == IBV_WC_SUCCESS) {
    done = BlankCompletion(request.wr_id, qp_num);
    done.opcode = request.is_send   ? IBV_WC_SEND
                  : request.is_read ? IBV_WC_RDMA_READ
                                    : IBV_WC_RDMA_WRITE;
  } else {
    done = FailedCompletion(request.wr_id, status, qp_num);
  }
  device_.Complete(
      static_cast<CompletionQueue*>(send_cq),
      {.done = done, .queue_pair = identity_, .is_send = true, .end = request.index + 1});
}

void QueuePair::TakeReceive(const SendRequest& by) {
  const ReceiveRequest request = receives_.front();
  receives_.pop_front();
  ibv_wc done = BlankCompletion(request.wr_id, qp_num);
  done.opcode = by.is_send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  done.byte_len = static_cast<uint32_t>(by.size_bytes);
  if (by.immediate) {
    done.imm_data = *by.immediate;
    done.wc_flags = IBV_WC_WITH_IMM;
  }
  device_.Complete(static_cast<CompletionQueue*>(recv_cq),
                   {.done = done, .queue_pair = identity_, .end = request.index + 1});
}

void QueuePair::EnterError() {
  state = IBV_QPS_ERR;
  // Taken first: an overrun on the way ends here again.
  const std::deque<SendRequest> sends = std::exchange(sends_, {});
  const std::deque<ReceiveRequest> receives = std::exchange(receives_, {});
  for (const SendRequest& request : sends) CompleteSend(request, IBV_WC_WR_FLUSH_ERR);
  for (const ReceiveRequest& request : receives) {
    device_.Complete(static_cast<CompletionQueue*>(recv_cq),
                     {.done = FailedCompletion(request.wr_id, IBV_WC_WR_FLUSH_ERR, qp_num),
                      .queue_pair = identity_,
                      .end = request.index + 1});
  }
}

bool QueuePair::HasTriedFor(uint64_t now, uint32_t ticks) {
  if (!trying_since_) trying_since_ = now;
  return now - *trying_since_ >= ticks;
}

}  // namespace waybill::fake_verbs
