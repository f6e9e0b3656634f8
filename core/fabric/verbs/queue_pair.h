// SPDX-License-Identifier: Apache-2.0

// A reliable-connected queue pair: made, connected and destroyed.
#ifndef WAYBILL_CORE_FABRIC_VERBS_QUEUE_PAIR_H_
#define WAYBILL_CORE_FABRIC_VERBS_QUEUE_PAIR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/lane_address.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// The lengths of a queue pair's queues, and how it treats the path to its peer.
struct QueuePairOptions {
  uint32_t sends = 1;
  uint32_t receives = 1;
  // A packet is sent again after 4.096 us * 2^ack_timeout, retry_count times: then the queue pair
  // fails. 7 would be for ever on SoftRoCE. An ack_timeout of 0 is 14, and on SoftRoCE 18.
  uint8_t ack_timeout = 0;
  uint8_t retry_count = 6;
  uint8_t traffic_class = 0;
};

class QueuePair {
 public:
  // Creates a queue pair in the state INIT: receives may be posted, and its address may be given to
  // a peer. Completions of sends and of receives go to the two completion queues, which outlive the
  // queue pair, as does the NIC. `access` says what the peer may do (IBV_ACCESS_REMOTE_*). `peer`
  // appears in errors.
  //
  // kResourceExhausted: the device has no more queue pairs; kUnavailable: it refuses the
  // transition.
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(Verbs* verbs, Nic* nic, ibv_cq* sends,
                                                           ibv_cq* receives,
                                                           const QueuePairOptions& options,
                                                           unsigned access, absl::string_view peer);
  // Afterwards the NIC touches no memory on behalf of the queue pair.
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  ibv_qp* get() const { return queue_pair_; }
  uint32_t number() const { return queue_pair_->qp_num; }
  // Returns the maximum size of what may be sent inline.
  uint32_t inline_bytes() const { return inline_bytes_; }

  // Returns the address of this end, without a rendezvous.
  LaneAddress Address() const;
  // How the queue pair is to be connected.
  struct Plan {
    ibv_qp_attr receive = {};
    ibv_qp_attr send = {};
  };
  // kUnavailable: the GIDs of the two ends are of different kinds.
  absl::StatusOr<Plan> PlanTo(const LaneAddress& peer) const;
  // Makes the queue pair ready to receive and to send. It may take seconds to find the way to the
  // peer's address. kUnavailable: the device refuses, as where it finds none. [any thread, while no
  // other one uses the queue pair]
  absl::Status Connect(const Plan& plan);

 private:
  QueuePair(Verbs* verbs, Nic* nic, const QueuePairOptions& options, absl::string_view peer)
      : verbs_(*verbs), nic_(*nic), options_(options), peer_(peer) {}

  absl::Status Make(ibv_cq* sends, ibv_cq* receives);
  absl::Status Modify(ibv_qp_attr attributes, int mask, absl::string_view state);

  Verbs& verbs_;
  Nic& nic_;
  const QueuePairOptions options_;
  const std::string peer_;
  ibv_qp* queue_pair_ = nullptr;
  uint32_t inline_bytes_ = 0;
  uint32_t first_packet_ = 0;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_QUEUE_PAIR_H_
