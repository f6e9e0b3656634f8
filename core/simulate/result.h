// SPDX-License-Identifier: Apache-2.0

// What a simulated update tells.
#ifndef WAYBILL_CORE_SIMULATE_RESULT_H_
#define WAYBILL_CORE_SIMULATE_RESULT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/rank_id.h"
#include "core/simulate/network.h"

namespace waybill::simulate {

enum class Stage : uint8_t {
  kStage,   // A trainer packs, casts, quantises, stores or digests.
  kPost,    // Its progress thread posts writes.
  kWire,    // From the first write until the last one has landed, on either side.
  kVerify,  // A worker digests.
  kCommit,  // From a worker's vote until it shows the version.
};
inline constexpr size_t kStageCount = 5;
constexpr absl::string_view Name(Stage stage) {
  constexpr absl::string_view kNames[] = {"stage", "post", "wire", "verify", "commit"};
  return kNames[static_cast<size_t>(stage)];
}

// Seconds since the first publish(). Both are 0 if the stage did not take place.
struct Span {
  double begin = 0;
  double end = 0;
  double busy = 0;  // How much of it the rank worked at the stage; of kWire, the whole span.
};

struct RankResult {
  RankId id;
  std::array<Span, kStageCount> spans;
  uint64_t held_bytes = 0;
  uint64_t moved_bytes = 0;    // What a trainer sends, or a worker receives.
  uint64_t relayed_bytes = 0;  // What a worker sends to others.
  uint64_t ring_bytes = 0;     // A trainer's staging ring, as far as it was ever in use.
  uint64_t buffer_bytes = 0;   // What a worker keeps beside what it shows.
  uint64_t ledger_bytes = 0;
};

// What no schedule can beat: a NIC's bytes over its rate as sold.
struct Bound {
  double seconds = 0;
  std::string port;  // The one that it is of.
};

struct Result {
  double seconds = 0;  // From the first publish() until the last worker shows the version.
  double sent_seconds = 0;
  double publish_seconds = 0;  // Until the last trainer may change its weights.
  Bound egress;
  Bound ingress;
  uint64_t total_bytes = 0;
  uint64_t writes = 0;
  double trainer_imbalance = 1;  // The busiest trainer over the mean, in bytes.
  double worker_imbalance = 1;
  std::vector<RankResult> ranks;  // Trainers, then workers.
  std::vector<PortLoad> ports;
  std::vector<std::string> warnings;
  // The way of the bytes that came last, and what kept it busy most.
  std::string slowest_path;
  // How finely it was simulated.
  uint64_t piece_bytes = 0;
  uint64_t pieces = 0;
  uint64_t events = 0;

  double bound_seconds() const {
    return egress.seconds > ingress.seconds ? egress.seconds : ingress.seconds;
  }
};

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_RESULT_H_
