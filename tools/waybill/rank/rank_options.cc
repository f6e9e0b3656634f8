// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/rank/rank_options.h"

#include "absl/strings/str_cat.h"
#include "tools/waybill/command_line/token_options.h"

namespace waybill {

void RankOptions::AddTo(CLI::App& app) {
  // begin generated from capi/options.toml: flags of rank by app.
  app.add_option("--controller", identity.controller,
                 "address and port of the controller; of several controllers, all addresses, "
                 "separated by commas")
      ->capture_default_str();
  app.add_option("--job", identity.job, "name of the job")->capture_default_str();
  app.add_option("--rank", identity.rank,
                 "index of this rank, from 0 to world - 1; workers count within their group")
      ->envname("RANK")
      ->required();
  app.add_option("--world", identity.world,
                 "how many trainers, or how many workers of the group, there are")
      ->envname("WORLD_SIZE")
      ->required();
  app.add_option("--rack", rack,
                 "name of this host's rack or leaf switch; default: unknown; the rank is then in "
                 "no rack with any other")
      ->envname("WAYBILL_RACK");
  // end generated
  AddTokenOptions(app, identity.token);
  app.add_option("--join-timeout", join_timeout_seconds,
                 "seconds until the ranks of a group must have joined")
      ->capture_default_str();
  app.add_option("--checkpoint", checkpoint,
                 "a Hugging Face directory with config.json and safetensors files")
      ->required();
  app.add_option("--changed", changed, "part of the weights that changes with each version")
      ->check(CLI::Range(0.0, 0.5) | CLI::Range(1.0, 1.0))
      ->group("");
  app.add_flag("--driven", driven, "take commands from standard input, answer in JSON lines")
      ->group("");
  fabric.AddTo(app);
}

std::vector<std::string> PathsOf(const std::vector<LaneReport>& lanes) {
  std::vector<std::string> paths;
  paths.reserve(lanes.size());
  for (const LaneReport& lane : lanes) {
    if (!lane.co_owner) paths.push_back(lane.path);
  }
  return paths;
}

std::string ShardingOr(const RankOptions& options, const std::string& kind) {
  if (!options.sharding.empty()) return options.sharding;
  return absl::StrCat(kind, "=", options.identity.world);
}

nlohmann::json StagesToJson(const StageSpans& spans) {
  nlohmann::json json = nlohmann::json::object();
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].begin_ns == 0) continue;
    json[std::string(Name(static_cast<Stage>(i)))] = {spans[i].begin_ns, spans[i].end_ns};
  }
  return json;
}

}  // namespace waybill
