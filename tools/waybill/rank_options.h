// What `waybill trainer` and `waybill worker` have in common on the command line.
#ifndef WAYBILL_TOOLS_WAYBILL_RANK_OPTIONS_H_
#define WAYBILL_TOOLS_WAYBILL_RANK_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/control/rank_client.h"
#include "core/engine/timeline.h"
#include "tools/waybill/fabric_options.h"

namespace waybill {

struct RankOptions {
  RankIdentity identity;
  double join_timeout_seconds = 120;
  std::string checkpoint;
  std::string sharding;
  CommandFabricOptions fabric;
  bool driven = false;

  // Options, or the launcher's environment (RANK, WORLD_SIZE), or WAYBILL_TOKEN.
  void AddTo(CLI::App& app);
  // After parsing.
  RankIdentity Identity() const;
};

// {"stage": [begin_ns, end_ns], ...}, of those that there were.
nlohmann::json StagesToJson(const StageSpans& spans);

// For events: how each lane between a trainer and a worker is carried.
std::vector<std::string> PathsOf(const std::vector<LaneReport>& lanes);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RANK_OPTIONS_H_
