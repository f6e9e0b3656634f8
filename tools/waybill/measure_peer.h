// Latency and bandwidth to another host, by the size of a write, over each fabric that reaches it.
#ifndef WAYBILL_TOOLS_WAYBILL_MEASURE_PEER_H_
#define WAYBILL_TOOLS_WAYBILL_MEASURE_PEER_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace waybill {

struct MeasureOptions {
  std::string own_address;  // Empty: the one on the way to the peer.
  std::vector<std::string> nics;
  int gid_index = -1;  // -1: by rule.
  double seconds_each = 0.5;
};

struct SizePoint {
  uint64_t write_bytes = 0;
  double latency_seconds = 0;  // Of one write alone, median: posted to complete.
  double bytes_per_second = 0;
};

struct FabricCurve {
  std::string fabric;
  std::string path;     // Fabric::DescribeLane().
  absl::Status status;  // Not OK: it does not reach the peer.
  std::vector<SizePoint> points;
};

using Progress = std::function<void(const std::string&)>;

// The other end: serves one peer after the other until the process is interrupted.
absl::Status ServeMeasurements(const std::string& listen, const MeasureOptions& options,
                               const Progress& progress);

// `peer`: HOST or HOST:PORT. kUnavailable, with the remedy: nobody serves there.
absl::StatusOr<std::vector<FabricCurve>> MeasurePeer(const std::string& peer,
                                                     const MeasureOptions& options,
                                                     const Progress& progress);

// The curves as text: bars by size.
std::string FormatCurves(const std::vector<FabricCurve>& curves);
nlohmann::json CurvesToJson(const std::vector<FabricCurve>& curves);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_MEASURE_PEER_H_
