// A demo's updates as a file that Perfetto and chrome://tracing show: a row for each rank, a bar
// for each stage.
#ifndef WAYBILL_TOOLS_WAYBILL_TRACE_FILE_H_
#define WAYBILL_TOOLS_WAYBILL_TRACE_FILE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace waybill {

// One stage of one update on one rank; nanoseconds of one clock.
struct TracedStage {
  std::string rank;  // "trainer 0"
  uint64_t version = 0;
  std::string stage;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// Trace Event Format: complete events, microseconds from the first one on; ranks are processes, and
// stages that overlap have threads of their own.
nlohmann::json ToChromeTrace(const std::vector<TracedStage>& stages);

absl::Status WriteTrace(const std::string& path, const std::vector<TracedStage>& stages);

// How an update's time passed: every moment from `begin_ns` to `end_ns` belongs to the first stage
// of this order that any rank was in, so each figure is what nothing before it hid.
struct ExposedTime {
  std::string stage;  // stage, post, exchange, wait, verify, commit; "hops": nobody was in any.
  double seconds = 0;
};
std::vector<ExposedTime> FindExposedTime(const std::vector<TracedStage>& stages, int64_t begin_ns,
                                         int64_t end_ns);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_TRACE_FILE_H_
