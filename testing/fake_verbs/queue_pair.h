// SPDX-License-Identifier: Apache-2.0

// A reliable-connected queue pair: its states, its two queues, and what an error does to them.
#ifndef WAYBILL_TESTING_FAKE_VERBS_QUEUE_PAIR_H_
#define WAYBILL_TESTING_FAKE_VERBS_QUEUE_PAIR_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace waybill::fake_verbs {

class Device;

struct SendRequest {
  uint64_t index = 0;  // Its place in its queue, from 0.
  uint64_t wr_id = 0;
  bool signalled = false;
  bool is_send = false;               // An empty send, which only consumes a receive.
  bool is_read = false;               // From the peer's memory into the pieces.
  std::optional<uint32_t> immediate;  // As posted, in network byte order.
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  uint64_t size_bytes = 0;
  std::vector<ibv_sge> pieces;
  std::optional<std::vector<std::byte>> inlined;  // Copied when it was posted.

  bool takes_receive() const { return is_send || immediate; }
};

struct ReceiveRequest {
  uint64_t index = 0;
  uint64_t wr_id = 0;
};

class QueuePair : public ibv_qp {
 public:
  QueuePair(Device* device, uint64_t identity, uint32_t number, ibv_pd* pd,
            const ibv_qp_init_attr& attributes);

  Device& device() const { return device_; }
  uint64_t identity() const { return identity_; }
  // The number of requests that its two queues have room for.
  uint64_t requests() const { return uint64_t{limits_.max_send_wr} + limits_.max_recv_wr; }
  const ibv_qp_attr& attributes() const { return attributes_; }

  // --- the calls of libibverbs; they return an errno ---
  int Modify(const ibv_qp_attr& attributes, int mask);
  int PostSend(ibv_send_wr* chain, ibv_send_wr** bad);
  int PostReceive(ibv_recv_wr* chain, ibv_recv_wr** bad);

  // --- by script ---
  struct ScriptedFailure {
    ibv_wc_status status;
    bool landed;  // Its data has arrived, and only the acknowledgements have not.
  };
  // Fails the k-th request posted from now on, counted from 0.
  void FailRequest(uint64_t k, ScriptedFailure failure) { scripted_[posted_ + k] = failure; }
  // Makes the next call accept that many requests and refuse the rest.
  void RefusePost(uint32_t accepted, int error) { refusal_ = {accepted, error}; }

  // --- for the wire ---
  bool receives() const { return state == IBV_QPS_RTR || state == IBV_QPS_RTS; }
  // Returns the request that moves next, or null.
  SendRequest* head() {
    return state == IBV_QPS_RTS && !sends_.empty() ? &sends_.front() : nullptr;
  }
  std::optional<ScriptedFailure> ScriptedFailureOfHead();
  void CompleteHead();
  // Fails that request and flushes the requests behind it.
  void FailHead(ibv_wc_status status);
  bool has_receive() const { return !receives_.empty(); }
  void TakeReceive(const SendRequest& by);
  // Flushes every outstanding request in order, signalled or not.
  void EnterError();
  // Returns true if the request has been tried for that many ticks.
  bool HasTriedFor(uint64_t now, uint32_t ticks);
  void HasGotThrough() { trying_since_.reset(); }

  uint32_t next_packet = 0;      // The next number to send,
  uint32_t expected_packet = 0;  // and the next one to receive.

  // Frees the slot of a polled completion, and those of unsignalled requests before it.
  void RetireSends(uint64_t end) { retired_ = std::max(retired_, end); }
  void RetireReceives(uint64_t end) { receives_retired_ = std::max(receives_retired_, end); }

 private:
  struct Refusal {
    uint32_t accepted;
    int error;
  };

  int MoveTo(ibv_qp_state to, const ibv_qp_attr& attributes, int mask);
  int PostOne(const ibv_send_wr& request);
  int PostOne(const ibv_recv_wr& request);
  void CompleteSend(const SendRequest& request, ibv_wc_status status);

  Device& device_;
  const uint64_t identity_;
  const ibv_qp_cap limits_;
  const bool signals_all_;
  ibv_qp_attr attributes_ = {};
  std::deque<SendRequest> sends_;  // Requests that have not moved yet.
  std::deque<ReceiveRequest> receives_;
  uint64_t posted_ = 0;
  uint64_t retired_ = 0;
  uint64_t receives_posted_ = 0;
  uint64_t receives_retired_ = 0;
  std::map<uint64_t, ScriptedFailure> scripted_;
  std::optional<Refusal> refusal_;
  std::optional<uint64_t> trying_since_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_QUEUE_PAIR_H_
