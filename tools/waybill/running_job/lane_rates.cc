// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/running_job/lane_rates.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace waybill {

std::map<std::string, LaneRates> RatesOfLanes(const proto::StatusReply& status) {
  std::map<std::string, std::vector<std::pair<double, std::string>>> lanes;  // By fabric.
  for (const proto::RankStatus& rank : status.ranks()) {
    for (const proto::LaneRate& lane : rank.report().lane_rates()) {
      if (lane.us() <= 0) continue;
      const double seconds = static_cast<double>(lane.us()) / 1e6;
      lanes[lane.fabric()].emplace_back(
          static_cast<double>(lane.bytes()) / seconds,
          absl::StrCat(rank.name(), " to worker ", lane.peer(), " of ", lane.group()));
    }
  }
  std::map<std::string, LaneRates> rates;
  for (auto& [fabric, all] : lanes) {
    std::sort(all.begin(), all.end());
    rates[fabric] = {.slowest = all.front().first,
                     .median = all[(all.size() - 1) / 2].first,
                     .fastest = all.back().first,
                     .slowest_lane = all.front().second};
  }
  return rates;
}

}  // namespace waybill
