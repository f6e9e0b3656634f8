// SPDX-License-Identifier: Apache-2.0

#include "core/control/rank_report.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace waybill {
namespace {

void AddCounter(absl::string_view name, uint64_t value, proto::RankReport& out) {
  proto::Counter* counter = out.add_counters();
  counter->set_name(std::string(name));
  counter->set_value(value);
}

void AddStages(const StageSpans& spans, proto::RankReport& out) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const StageSpan& span : spans) {
    if (span.begin_ns != 0) first = std::min(first, span.begin_ns);
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].begin_ns == 0) continue;
    proto::StageTime* stage = out.add_stages();
    stage->set_name(std::string(Name(static_cast<Stage>(i))));
    stage->set_begin_us((spans[i].begin_ns - first) / 1000);
    stage->set_end_us((spans[i].end_ns - first) / 1000);
  }
}

template <typename Report>
proto::RankReport Begin(const Report& report, uint64_t moved_bytes, const Fabric& fabric) {
  proto::RankReport out;
  out.set_version(report.version);
  out.set_moved_bytes(moved_bytes);
  AddStages(report.stages, out);
  for (const FabricCount& count : fabric.Counts()) AddCounter(count.name, count.value, out);
  return out;
}

}  // namespace

proto::RankReport EncodeReport(const TrainerReport& report, const Fabric& fabric) {
  proto::RankReport out = Begin(report, report.counts.bytes, fabric);
  AddCounter("sent_bytes", report.total.bytes, out);
  AddCounter("writes", report.total.writes, out);
  AddCounter("stores", report.total.stores, out);
  AddCounter("staged_bytes", report.total.staged_bytes, out);
  AddCounter("spared_bytes", report.total.spared_bytes, out);
  AddCounter("left_out_elements", report.left_out_elements, out);
  AddCounter("unselected_bytes", report.unselected_bytes, out);
  AddCounter("immediates", report.total.immediates, out);
  AddCounter("maxima_messages", report.total.maxima_messages, out);
  AddCounter("maxima_bytes", report.total.maxima_bytes, out);
  AddCounter("ring_high_water_bytes", report.ring_high_water_bytes, out);
  uint64_t nonfinite = 0;
  for (const NonFinite& found : report.nonfinite) nonfinite += found.elements;
  AddCounter("nonfinite_elements", nonfinite, out);
  for (const LaneRate& rate : report.rates) {
    proto::LaneRate* lane = out.add_lane_rates();
    lane->set_peer(rate.peer);
    lane->set_group(rate.group);
    lane->set_fabric(rate.fabric);
    lane->set_bytes(rate.bytes);
    lane->set_us(absl::ToInt64Microseconds(rate.time));
  }
  return out;
}

proto::RankReport EncodeReport(const WorkerReport& report, const Fabric& fabric) {
  proto::RankReport out = Begin(report, report.arrived_bytes, fabric);
  AddCounter("verified_bytes", report.counts.verified_bytes, out);
  AddCounter("stragglers", report.counts.stragglers, out);
  AddCounter("repeats", report.counts.repeats, out);
  AddCounter("renewals", report.counts.renewals, out);
  AddCounter("completed_bytes", report.counts.completed_bytes, out);
  AddCounter("wrong_bases", report.counts.wrong_bases, out);
  AddCounter("unchanged_versions", report.counts.unchanged_versions, out);
  AddCounter("host_buffer_bytes", report.counts.host_buffer_bytes, out);
  AddCounter("gpu_buffer_bytes", report.counts.gpu_buffer_bytes, out);
  return out;
}

}  // namespace waybill
