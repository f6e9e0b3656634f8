// What a simulated NIC is: its limits, ports and GIDs, and in which of the allowed ways it behaves.
#ifndef WAYBILL_TESTING_FAKE_VERBS_DEVICE_OPTIONS_H_
#define WAYBILL_TESTING_FAKE_VERBS_DEVICE_OPTIONS_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace waybill::fake_verbs {

// A row of a port's GID table; all zero: an empty row.
struct GidRow {
  ibv_gid_type kind = IBV_GID_TYPE_ROCE_V2;
  std::array<uint8_t, 16> gid = {};
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
  uint8_t width = 2;   // 4 lanes,
  uint8_t speed = 32;  // of 25 Gbit/s.
  // None: those of an mlx5 port with an address in 10.0.0.0/16, no two ports the same. On
  // InfiniBand one GID, and a LID.
  std::optional<std::vector<GidRow>> gids;
};

struct DeviceOptions {
  std::vector<PortOptions> ports = {PortOptions{}};
  uint32_t vendor_id = 0x02C9;  // 0xFFFFFF: rxe.
  uint32_t max_queue_pairs = 1024;
  uint32_t max_requests = 16384;  // Of one queue of a queue pair.
  uint32_t max_pieces = 16;       // Of one work request.
  uint32_t max_cqe = 65536;
  uint32_t max_inline_bytes = 128;
  uint64_t max_registration_bytes = uint64_t{1} << 40;
  bool dmabuf = true;

  // What was not polled of a queue pair that is destroyed stays in its queues, as on rxe; else it
  // is taken out, as on mlx5.
  bool completions_outlive_queue_pairs = false;
  // A new queue pair gets the smallest number that is free.
  bool reuses_queue_pair_numbers = false;
  // A retry_cnt of 7 is for ever, as on rxe.
  bool seven_retries_are_endless = false;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_DEVICE_OPTIONS_H_
