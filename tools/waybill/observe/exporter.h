// SPDX-License-Identifier: Apache-2.0

// Serves the metrics of a controller to Prometheus, and a page of its job, by HTTP.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_EXPORTER_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_EXPORTER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/control/controller.h"
#include "tools/waybill/observe/status_families.h"
#include "tools/waybill/observe/update_watch.h"

namespace waybill {

// Serves http://ADDRESS/metrics, and the page on http://ADDRESS/, on threads of its own, from
// Start() until its end. Before a controller is there, and between two controllers, there are only
// metrics of the process, and the page says so.
class MetricsExporter {
 public:
  // `address`: numeric, with a port; port 0 takes a free one. `watch` outlives the exporter.
  // kUnavailable: it cannot be bound; kInvalidArgument: it is not an address.
  static absl::StatusOr<std::unique_ptr<MetricsExporter>> Start(const std::string& address,
                                                                const std::string& job,
                                                                RankSeries ranks,
                                                                const UpdateWatch& watch);
  virtual ~MetricsExporter() = default;

  // Returns the address, as "127.0.0.1:9464".
  virtual std::string address() const = 0;
  // Sets the controller whose status is served. Null must be set before the controller ends.
  virtual void SetController(const Controller* controller) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_EXPORTER_H_
