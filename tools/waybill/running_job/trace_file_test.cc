// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/running_job/trace_file.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace waybill {
namespace {

std::vector<TracedStage> Example() {
  return {{"trainer 0", 7, "exchange", 1'000, 3'000}, {"trainer 0", 7, "stage", 2'000, 6'000},
          {"trainer 0", 7, "wait", 6'000, 7'000},     {"worker 0", 7, "receive", 500, 7'000},
          {"worker 0", 7, "verify", 6'500, 9'000},    {"worker 0", 7, "commit", 9'500, 10'000}};
}

TEST(Trace, EveryMomentBelongsToTheFirstStageThatAnyRankIsIn) {
  std::map<std::string, double> seconds;
  double total = 0;
  for (const ExposedTime& e : FindExposedTime(Example(), 0, 10'000)) {
    seconds[e.stage] = e.seconds * 1e9;
    total += e.seconds * 1e9;
  }
  EXPECT_DOUBLE_EQ(seconds["stage"], 4'000);
  EXPECT_DOUBLE_EQ(seconds["exchange"], 1'000);  // The other half is behind staging.
  EXPECT_DOUBLE_EQ(seconds["wait"], 1'000);
  EXPECT_DOUBLE_EQ(seconds["verify"], 2'000);
  EXPECT_DOUBLE_EQ(seconds["commit"], 500);
  EXPECT_DOUBLE_EQ(seconds["hops"], 1'500);
  EXPECT_DOUBLE_EQ(total, 10'000);
}

TEST(Trace, RanksAreProcessesAndTimesAreMicrosecondsFromTheFirst) {
  const nlohmann::json trace = ToChromeTrace(Example());
  std::map<int, std::string> names;
  size_t bars = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") names[event["pid"]] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    ++bars;
    if (event["name"] == "verify") {
      EXPECT_EQ(names[event["pid"]], "worker 0");
      EXPECT_DOUBLE_EQ(event["ts"].get<double>(), 6.0);
      EXPECT_DOUBLE_EQ(event["dur"].get<double>(), 2.5);
      EXPECT_EQ(event["args"]["version"], 7);
    }
  }
  EXPECT_EQ(bars, Example().size());
  EXPECT_EQ(names.size(), 2u);
}

TEST(Trace, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_EQ(WriteTrace("/nowhere/trace.json", Example()).message(),
            "trace: cannot write /nowhere/trace.json");
}

}  // namespace
}  // namespace waybill
