// SPDX-License-Identifier: Apache-2.0

// Makes metric families.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_FAMILIES_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_FAMILIES_H_

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <string>
#include <utility>
#include <vector>

namespace waybill {

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

inline prometheus::MetricFamily MakeGauges(std::string name, std::string help) {
  return {std::move(name), std::move(help), prometheus::MetricType::Gauge, {}};
}
inline prometheus::MetricFamily MakeCounters(std::string name, std::string help) {
  return {std::move(name), std::move(help), prometheus::MetricType::Counter, {}};
}

// Adds one series to a family of gauges or counters.
inline void AddSeries(prometheus::MetricFamily& family, MetricLabels labels, double value) {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  if (family.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_FAMILIES_H_
