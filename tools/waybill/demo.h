// The demo: a controller, trainers and workers as processes of this machine, and what came of them.
#ifndef WAYBILL_TOOLS_WAYBILL_DEMO_H_
#define WAYBILL_TOOLS_WAYBILL_DEMO_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/waybill/trace_file.h"

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
  bool bound = true;  // Measures memcpy beside.
  double timeout_seconds = 60;
  uint32_t threads = 1;
  std::string fabric = "auto";
  // RDMA devices by node, "rxe1,rxe2;rxe3,rxe4": ranks take the nodes in turn. Empty: any.
  std::string nodes;
  // Commands that run the one that follows them, in another network namespace or on another host:
  // "ip netns exec left". The controller runs with the trainers.
  std::string wrap_trainers;
  std::string wrap_workers;
  std::string listen = "127.0.0.1";  // Where the controller listens.
  std::string kill;  // "trainer 0": SIGKILL in the middle of the last version, to see what happens.
};

struct DemoUpdate {
  uint64_t version = 0;
  double seconds = 0;         // From the first publish() to the last SHOWN.
  double sent_seconds = 0;    // To the last trainer's SENT.
  double moving_seconds = 0;  // Of the slowest trainer: from START to SENT. The rest is hops.
  double checked_seconds = 0;
  std::vector<ExposedTime> exposed;  // How `seconds` passed.
};

struct DemoRank {
  std::string name;
  uint64_t weight_bytes = 0;  // That it holds.
  uint64_t moved_bytes = 0;   // In one update.
  nlohmann::json counts;      // Of a trainer's last update.
  std::vector<std::string> lanes;
};

struct DemoReport {
  std::string model;
  std::vector<DemoRank> trainers;
  std::vector<DemoRank> workers;
  std::vector<DemoUpdate> updates;
  std::vector<TracedStage> stages;  // Of all updates and ranks.
  uint64_t update_bytes = 0;
  uint64_t elements_checked = 0;
  double copy_bytes_per_second = 0;  // This machine's memcpy, into a mapping of the same kind.
  uint32_t copy_threads = 1;

  double median_seconds() const;
  double worst_seconds() const;
  double imbalance() const;  // Busiest trainer over the mean.
};

// `progress` gets a line now and then. The first thing that goes wrong ends it, with the reason.
absl::StatusOr<DemoReport> RunDemo(const DemoOptions& options,
                                   const std::function<void(const std::string&)>& progress);

std::string FormatReport(const DemoReport& report, const DemoOptions& options);
nlohmann::json ReportToJson(const DemoReport& report);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DEMO_H_
