// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/described_job/prediction.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/layout/sharding.h"
#include "core/simulate/simulate.h"
#include "tools/waybill/described_job/planned_job.h"

namespace waybill {
namespace {

absl::Status CannotHave(uint32_t ranks, absl::string_view name, const Side& side) {
  return absl::InvalidArgumentError(absl::StrCat(
      "sweep: ", name, " \"", side.Describe(), "\" cannot be ", ranks,
      " ranks; a sweep changes the number of replicas, so it takes multiples of one replica's"));
}

// Changes the number of replicas, so that the side has `ranks` ranks.
template <typename Sharding>
absl::Status SetRanks(absl::string_view name, uint32_t ranks, Side& side) {
  if (!side.manifests.empty()) {
    if (ranks % side.manifests.size() != 0) return CannotHave(ranks, name, side);
    side.replicas = ranks / static_cast<uint32_t>(side.manifests.size());
    return absl::OkStatus();
  }
  const std::string& text = side.sharding;
  const std::vector<std::string> kept = absl::StrSplit(text, ',', absl::SkipEmpty());
  WAYBILL_ASSIGN_OR_RETURN(const Sharding now, Sharding::Parse(text));
  // "replicas" where the sharding has such a word, else "dp".
  for (const absl::string_view key : {"replicas", "dp"}) {
    std::vector<std::string> words;
    uint32_t replicas_now = 1;
    for (const std::string& word : kept) {
      if (absl::StartsWith(word, absl::StrCat(key, "="))) {
        (void)absl::SimpleAtoi(word.substr(key.size() + 1), &replicas_now);
      } else {
        words.push_back(word);
      }
    }
    const uint32_t one = now.world() / std::max<uint32_t>(1, replicas_now);
    if (one == 0 || ranks % one != 0) continue;
    words.push_back(absl::StrCat(key, "=", ranks / one));
    const std::string wanted = absl::StrJoin(words, ",");
    const auto parsed = Sharding::Parse(wanted);
    if (parsed.ok() && parsed->world() == ranks) {
      side.sharding = wanted;
      return absl::OkStatus();
    }
  }
  return CannotHave(ranks, name, side);
}

}  // namespace

absl::StatusOr<Prediction> Predict(const ClusterFile& file) {
  Prediction prediction;
  prediction.file = file;
  WAYBILL_ASSIGN_OR_RETURN(PlannedJob job, PlanJob(file));
  prediction.planning_seconds = job.seconds;
  prediction.plan_hash = job.plan.hash();
  prediction.traffic =
      simulate::TrafficOf(job.plan, std::move(job.held.senders), std::move(job.held.receivers));
  WAYBILL_ASSIGN_OR_RETURN(prediction.result, simulate::Simulate(prediction.traffic, file.hardware,
                                                                 {.mode = file.mode,
                                                                  .digests = file.digests,
                                                                  .images = file.images,
                                                                  .changed = file.changed}));
  prediction.result.warnings.insert(prediction.result.warnings.begin(), job.warnings.begin(),
                                    job.warnings.end());
  return prediction;
}

absl::Status Sweep(const std::string& what, Prediction& prediction) {
  const std::vector<std::string> sides = absl::StrSplit(what, '=');
  const std::vector<std::string> ends =
      sides.size() == 2 ? absl::StrSplit(sides[1], "..") : std::vector<std::string>();
  uint32_t first = 0, last = 0;
  if (ends.size() != 2 || (sides[0] != "workers" && sides[0] != "trainers") ||
      !absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends[1], &last) || first == 0 ||
      last < first || last > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sweep is \"", what,
                     "\"; accepted: workers=FIRST..LAST or trainers=FIRST..LAST, from 1 "
                     "to 65536"));
  }
  prediction.swept = sides[0];
  for (uint64_t ranks = first; ranks <= last; ranks *= 2) {
    ClusterFile file = prediction.file;
    const auto count = static_cast<uint32_t>(ranks);
    WAYBILL_RETURN_IF_ERROR(sides[0] == "workers"
                                ? SetRanks<WorkerSharding>("workers", count, file.workers)
                                : SetRanks<TrainerSharding>("trainers", count, file.trainers));
    WAYBILL_ASSIGN_OR_RETURN(const Prediction point, Predict(file));
    prediction.sweep.push_back({.ranks = static_cast<uint32_t>(ranks),
                                .seconds = point.result.seconds,
                                .bound_seconds = point.result.bound_seconds()});
  }
  return absl::OkStatus();
}

}  // namespace waybill
