// SPDX-License-Identifier: Apache-2.0

// What RDMA this host has, port by port, and what the fabric would choose: for people who look for
// the reason why it does not work.
#ifndef WAYBILL_CORE_FABRIC_VERBS_SURVEY_H_
#define WAYBILL_CORE_FABRIC_VERBS_SURVEY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace waybill {

namespace verbs {
class Verbs;
}  // namespace verbs

struct SurveyedGid {
  uint32_t index = 0;
  std::string kind;     // "RoCE v2".
  std::string address;  // "10.0.0.1", or eight groups.
};

struct SurveyedPort {
  std::string name;  // The name as in VerbsOptions::nics.
  std::string device;
  uint8_t port = 1;
  bool active = false;         // Its link is up.
  bool software = false;       // Emulated by the kernel.
  std::string link_layer;      // "Ethernet", "InfiniBand".
  uint32_t mtu_bytes = 0;      // The MTU in use.
  uint32_t max_mtu_bytes = 0;  // and possible.
  uint64_t bytes_per_second = 0;
  uint32_t numa_node = 0;
  uint64_t max_message_bytes = 0;
  uint32_t max_queue_pairs = 0;
  std::vector<SurveyedGid> gids;
  // Not OK: the port cannot be used, and why.
  absl::Status usable;
  uint32_t chosen_gid = 0;  // If the port is usable.
  std::string chosen_reason;
};

// kUnavailable, with the remedy: no library, or no device. `library`: for tests; else this host's.
absl::StatusOr<std::vector<SurveyedPort>> SurveyRdma(std::optional<uint32_t> gid_index,
                                                     verbs::Verbs* library = nullptr);

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_VERBS_SURVEY_H_
