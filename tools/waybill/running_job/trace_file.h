// SPDX-License-Identifier: Apache-2.0

// Writes a demo's updates as a file for Perfetto and chrome://tracing, with a row for each rank and
// a bar for each stage.
#ifndef WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_TRACE_FILE_H_
#define WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_TRACE_FILE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace waybill {

// One stage of one update on one rank. All times come from one clock.
struct TracedStage {
  std::string rank;  // "trainer 0"
  uint64_t version = 0;
  std::string stage;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// Returns the stages in Trace Event Format, as complete events in microseconds since the first one.
// Each rank is a process; stages that overlap are separate threads.
nlohmann::json ToChromeTrace(const std::vector<TracedStage>& stages);

absl::Status WriteTrace(const std::string& path, const std::vector<TracedStage>& stages);

// The time of an update that a stage does not share with a stage before it in this order. Each
// moment from `begin_ns` to `end_ns` counts for the first stage in the order that any rank was in.
struct ExposedTime {
  std::string stage;  // stage, post, exchange, wait, verify, commit; or "hops" for no stage.
  double seconds = 0;
};
std::vector<ExposedTime> FindExposedTime(const std::vector<TracedStage>& stages, int64_t begin_ns,
                                         int64_t end_ns);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_TRACE_FILE_H_
