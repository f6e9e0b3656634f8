// SPDX-License-Identifier: Apache-2.0

// The demo: runs a controller, trainers and workers as processes of this machine, and measures
// them.
#ifndef WAYBILL_TOOLS_WAYBILL_DEMO_DEMO_H_
#define WAYBILL_TOOLS_WAYBILL_DEMO_DEMO_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/protocol/timeouts.h"
#include "tools/waybill/running_job/lane_table.h"
#include "tools/waybill/running_job/trace_file.h"

namespace waybill {

struct DemoOptions {
  std::string model = "gpt2";
  std::optional<int64_t> layers;
  std::string checkpoint;
  std::string trainers;  // A number (rows, fsdp) or a sharding.
  std::string workers;
  uint64_t versions = 5;
  std::string mode = "shadow";
  std::string dtype;
  std::string format;
  std::string dump;
  std::string trace;  // A file for the updates' timelines.
  bool digests = true;
  bool check = true;
  bool bound = true;  // Also measures memcpy.
  LaneDetail lanes = LaneDetail::kSummary;
  double timeout_seconds = absl::ToDoubleSeconds(kPublishTimeout);
  uint32_t threads = 1;
  bool images = false;            // The trainers send from copies of their weights.
  std::string changes = "never";  // They send only what changed since the version before.
  double changed = 1;             // The part of the weights that changes with each version.
  std::string fabric = "auto";
  std::string relays = "auto";  // As the controller's option.
  // RDMA NICs by node, "rxe1,rxe2;rxe3,rxe4"; ranks take the nodes in turn. Empty: any NIC.
  std::string nodes;
  // Commands that run the command after them in another network namespace or on another host, such
  // as "ip netns exec left". The controller runs where the trainers run.
  std::string wrap_trainers;
  std::string wrap_workers;
  std::string listen = "127.0.0.1";  // Where the controller listens.
  std::string kill;  // A rank to SIGKILL while the last version is published, such as "trainer 0".
};

struct DemoUpdate {
  uint64_t version = 0;
  double seconds = 0;         // From the first publish() to the last SHOWN.
  double sent_seconds = 0;    // From the first publish() to the last trainer's SENT.
  double moving_seconds = 0;  // From START to SENT on the slowest trainer. The rest is hops.
  double checked_seconds = 0;
  std::vector<ExposedTime> exposed;  // `seconds`, by stage.
};

struct DemoRank {
  std::string name;
  uint64_t weight_bytes = 0;  // Held by the rank.
  uint64_t moved_bytes = 0;   // Sent or received in one update.
  nlohmann::json counts;      // Trainers only: counts of the last update.
  std::vector<std::string> lanes;
};

struct DemoReport {
  std::string model;
  std::vector<DemoRank> trainers;
  std::vector<DemoRank> workers;
  std::vector<DemoUpdate> updates;
  std::vector<TracedStage> stages;  // Of all updates on all ranks.
  uint64_t update_bytes = 0;
  uint64_t elements_checked = 0;
  double copy_bytes_per_second = 0;  // This machine's memcpy, into a mapping of the same kind.
  uint32_t copy_threads = 1;

  double median_seconds() const;
  double worst_seconds() const;
  double imbalance() const;  // Busiest trainer over the mean.
};

// Runs the demo. Calls `progress` with a line for each step. Returns the first error.
absl::StatusOr<DemoReport> RunDemo(const DemoOptions& options,
                                   const std::function<void(const std::string&)>& progress);

std::string FormatReport(const DemoReport& report, const DemoOptions& options);
nlohmann::json ReportToJson(const DemoReport& report);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DEMO_DEMO_H_
