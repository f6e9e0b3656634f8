// SPDX-License-Identifier: Apache-2.0

// Sends the updates of a controller to an OpenTelemetry collector, by OTLP over gRPC.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_SPAN_EXPORTER_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_SPAN_EXPORTER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/protocol/messages.pb.h"
#include "tools/waybill/observe/update_watch.h"

namespace opentelemetry::proto::collector::trace::v1 {
class ScopeSpans;
}  // namespace opentelemetry::proto::collector::trace::v1

namespace waybill {

// Each update of a group is a trace, or continues the trace of the span that a trainer has named as
// its parent, if that is sampled. The update's span has a child for each part of the update, and
// one for each rank that has reported, with a child for each stage on that rank.
//
// A rank's clock may differ from the controller's, so the times of its stages count back from when
// the controller heard of the last one. A trainer reports once it has sent a version to all groups;
// an update of a group that has ended before lacks it.
//
// Sends from a thread of its own, so that a slow collector delays nobody. One call has several
// updates, because a call for each took as much processor time as a small update. Thread-safe.
class SpanExporter final : public WatchListener {
 public:
  static constexpr size_t kMostWaiting = 1024;  // The most updates that wait to be sent.

  // Called on the exporter's thread when a call fails after one that did not, and with the number
  // of updates whose spans were lost when a call succeeds again.
  using Warn = std::function<void(const absl::Status& status)>;

  // `collector`: host and port, as "127.0.0.1:4317". An update is sent `gather` after it has ended,
  // with those that have ended meanwhile, or earlier if they are many. The end of the exporter
  // waits for the collector for a second at most.
  SpanExporter(const std::string& collector, std::string job, Warn warn,
               absl::Duration gather = absl::Seconds(1));
  ~SpanExporter() override;

  void OnReported(const UpdateWatch::Rank& rank, const proto::RankReport& report) override;
  void OnUpdateEnded(const UpdateWatch::Progress& update) override;

 private:
  class Collector;

  // A rank's report of its part in a version.
  struct Report {
    UpdateWatch::Rank rank;
    proto::RankReport report;
    absl::Time heard;  // By the time of day.
  };
  struct Update {
    UpdateWatch::Progress progress;
    std::vector<Report> reports;
    absl::Time ended;  // By the time of day.
  };

  // Sends what waits until the exporter ends.
  void Run();
  // Takes the updates of the next call from those that wait.
  std::vector<Update> Take();
  void Send(const std::vector<Update>& updates);
  void AddSpans(const Update& update,
                opentelemetry::proto::collector::trace::v1::ScopeSpans* spans);

  const std::string job_;
  const Warn warn_;
  const absl::Duration gather_;
  const std::unique_ptr<Collector> collector_;
  std::mt19937_64 random_;   // Makes the spans' ids. On the thread only, like the next.
  bool in_trouble_ = false;  // The last call failed.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::vector<Report>> reports_;  // By version.
  std::deque<Update> waiting_;
  uint64_t lost_ = 0;  // Updates, since the collector was last heard to take one.
  bool ends_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_SPAN_EXPORTER_H_
