// SPDX-License-Identifier: Apache-2.0

// Measures latency and bandwidth to another host over each fabric, by the size of a write.
#ifndef WAYBILL_TOOLS_WAYBILL_DOCTOR_MEASURE_PEER_H_
#define WAYBILL_TOOLS_WAYBILL_DOCTOR_MEASURE_PEER_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace waybill {

struct MeasureOptions {
  std::string own_address;  // Empty: the address from which this host reaches the peer.
  std::vector<std::string> nics;
  int gid_index = -1;  // -1: chosen by rule.
  double seconds_each = 0.5;
};

struct SizePoint {
  uint64_t write_bytes = 0;
  double latency_seconds = 0;  // Median time of a single write, from posted to complete.
  double bytes_per_second = 0;
};

struct FabricCurve {
  std::string fabric;
  std::string path;     // Fabric::DescribeLane().
  absl::Status status;  // Not OK if the fabric does not reach the peer.
  std::vector<SizePoint> points;
};

using Progress = std::function<void(const std::string&)>;

// Serves measurements to one peer after the other until the process is interrupted. Serves only
// peers that know the token (core/control/job_token.h).
absl::Status ServeMeasurements(const std::string& listen, const std::string& token,
                               const MeasureOptions& options, const Progress& progress);

// Measures against `peer`, which is HOST or HOST:PORT. kUnavailable: nobody serves there;
// kUnauthenticated: the other end has another token. The message says what to do.
absl::StatusOr<std::vector<FabricCurve>> MeasurePeer(const std::string& peer,
                                                     const std::string& token,
                                                     const MeasureOptions& options,
                                                     const Progress& progress);

// Returns the curves as text, with a bar for each size.
std::string FormatCurves(const std::vector<FabricCurve>& curves);
nlohmann::json CurvesToJson(const std::vector<FabricCurve>& curves);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DOCTOR_MEASURE_PEER_H_
