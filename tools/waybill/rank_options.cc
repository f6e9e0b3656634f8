#include "tools/waybill/rank_options.h"

namespace waybill {

void RankOptions::AddTo(CLI::App& app) {
  app.add_option("--controller", identity.controller, "address of the controller")
      ->capture_default_str();
  app.add_option("--job", identity.job, "the job that all its ranks name")->capture_default_str();
  app.add_option("--token", identity.token, "the job's secret")->envname("WAYBILL_TOKEN");
  app.add_option("--rank", identity.rank, "this rank")->envname("RANK")->required();
  app.add_option("--world", identity.world, "how many ranks of this role there are")
      ->envname("WORLD_SIZE")
      ->required();
  app.add_option("--join-timeout", join_timeout_seconds, "seconds until all must be there")
      ->capture_default_str();
  app.add_option("--checkpoint", checkpoint,
                 "a Hugging Face directory: config.json and safetensors")
      ->required();
  app.add_flag("--driven", driven, "take commands from standard input, answer in JSON lines")
      ->group("");
  fabric.AddTo(app);
}

RankIdentity RankOptions::Identity() const {
  RankIdentity result = identity;
  result.join_timeout = absl::Seconds(join_timeout_seconds);
  return result;
}

std::vector<std::string> PathsOf(const std::vector<LaneReport>& lanes) {
  std::vector<std::string> paths;
  paths.reserve(lanes.size());
  for (const LaneReport& lane : lanes) {
    if (!lane.co_owner) paths.push_back(lane.path);
  }
  return paths;
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
