// SPDX-License-Identifier: Apache-2.0

// The command-line options that `waybill trainer` and `waybill worker` share.
#ifndef WAYBILL_TOOLS_WAYBILL_RANK_RANK_OPTIONS_H_
#define WAYBILL_TOOLS_WAYBILL_RANK_RANK_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/control/rank_client.h"
#include "core/engine/timeline.h"
#include "core/protocol/timeouts.h"
#include "tools/waybill/rank/fabric_options.h"

namespace waybill {

struct RankOptions {
  RankIdentity identity;
  double join_timeout_seconds = absl::ToDoubleSeconds(kJoinTimeout);
  std::string checkpoint;
  std::string sharding;
  std::string rack;  // Empty if unknown.
  CommandFabricOptions fabric;
  bool driven = false;
  double changed = 1;  // See check::WeightVersion; driven ranks only.

  // Adds the options. Their defaults come from the launcher's environment (RANK, WORLD_SIZE) and
  // from WAYBILL_TOKEN.
  void AddTo(CLI::App& app);
  absl::Duration join_timeout() const { return absl::Seconds(join_timeout_seconds); }
};

// Returns --sharding, or if that is empty, all ranks in one dimension: "tp=2" if `kind` is "tp".
std::string ShardingOr(const RankOptions& options, const std::string& kind);

// Returns {"stage": [begin_ns, end_ns], ...} for the stages that have begun.
nlohmann::json StagesToJson(const StageSpans& spans);

// Returns the path of each lane between a trainer and a worker.
std::vector<std::string> PathsOf(const std::vector<LaneReport>& lanes);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RANK_RANK_OPTIONS_H_
