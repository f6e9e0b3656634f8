// SPDX-License-Identifier: Apache-2.0

// The properties of a simulated NIC: its limits, ports and GIDs, and its choice of allowed
// behaviours.
#ifndef WAYBILL_TESTING_FAKE_VERBS_DEVICE_OPTIONS_H_
#define WAYBILL_TESTING_FAKE_VERBS_DEVICE_OPTIONS_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace waybill::fake_verbs {

// A row of a port's GID table. All zeros: an empty row.
struct GidRow {
  ibv_gid_type kind = IBV_GID_TYPE_ROCE_V2;
  std::array<uint8_t, 16> gid = {};
  bool is_foreign = false;  // Of an interface in another network namespace.
};

constexpr GidRow Ipv4Gid(ibv_gid_type kind, uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {kind, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d}};
}

constexpr GidRow LinkLocalGid(ibv_gid_type kind, uint16_t host) {
  return {kind,
          {0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFE, 0, static_cast<uint8_t>(host >> 8),
           static_cast<uint8_t>(host)}};
}

struct PortOptions {
  bool active = true;
  bool infiniband = false;
  uint32_t max_message_bytes = 1u << 30;
  ibv_mtu mtu = IBV_MTU_4096;
  uint8_t width = 2;                // 4 lanes,
  uint8_t speed = 32;               // of 25 Gbit/s.
  uint16_t partition_key = 0xFFFF;  // The only one. Without the highest bit, a limited member's.
  // Empty: the GIDs of an mlx5 port with a unique address in 10.0.0.0/16; on InfiniBand, one GID
  // and a LID.
  std::optional<std::vector<GidRow>> gids;
};

struct DeviceOptions {
  std::vector<PortOptions> ports = {PortOptions{}};
  uint32_t vendor_id = 0x02C9;  // rxe has 0xFFFFFF.
  ibv_transport_type transport = IBV_TRANSPORT_IB;
  // False: the device makes no queue pairs of the RC type, as EFA.
  bool reliable_connections = true;
  uint32_t max_queue_pairs = 1024;
  uint32_t max_requests = 16384;  // Limit of one queue of a queue pair.
  uint32_t max_pieces = 16;       // Limit of one work request.
  uint32_t max_cqe = 65536;
  uint32_t max_inline_bytes = 128;
  // The limit on the locked memory of programs. What is registered counts, and, as on mlx5, 64
  // bytes for each entry of a completion queue and each request of a queue pair.
  uint64_t max_locked_bytes = ~uint64_t{0};
  // The time that passes on the network's clock while the device makes, modifies or destroys a
  // queue pair, and while it registers memory.
  absl::Duration queue_pair_call;
  absl::Duration registration;
  // Called, without any lock, when a program registers memory or modifies a queue pair. The call
  // takes until they return.
  std::function<void()> during_registration;
  std::function<void(ibv_qp_state to)> during_modification;
  uint64_t max_registration_bytes = uint64_t{1} << 40;
  bool dmabuf = true;
  // A module for peer memory: returns a dma-buf of pages that the process itself cannot read, which
  // the NIC closes, or -1 if it does not know them. Empty: no such module is loaded.
  std::function<int(uint64_t address, uint64_t size_bytes)> peer_memory;
  // Called when the NIC has read memory for a request, which by the rules of PCIe pushes what it
  // has written before it. A GPU sees those writes then.
  std::function<void()> after_read;

  // True if completions of a destroyed queue pair that were not polled stay in their queue, as on
  // rxe; otherwise they are removed, as on mlx5.
  bool completions_outlive_queue_pairs = false;
  // True if a new queue pair gets the smallest free number.
  bool reuses_queue_pair_numbers = false;
  // True if retries with a retry_cnt of 7 never end, as on rxe.
  bool seven_retries_are_endless = false;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_DEVICE_OPTIONS_H_
