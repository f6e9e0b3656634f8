// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/metrics/update_watch.h"

#include <prometheus/metric_type.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "tools/waybill/metrics/families.h"

namespace waybill {
namespace {

using Families = std::vector<prometheus::MetricFamily>;

constexpr const char* kPartNames[] = {"wait", "prepare", "transfer", "decide", "show", "total"};

// A job has a round for each of its groups at a time; what is beyond this is left over from terms
// that ended.
constexpr size_t kMostUpdates = 8192;
// Versions whose publishes may wait at a time. Trainers rarely have two.
constexpr size_t kMostPublications = 64;

prometheus::Histogram::BucketBoundaries Seconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
          1,     2.5,    5,     10,   25,    50,   100, 250,  600};
}

}  // namespace

UpdateWatch::UpdateWatch() : stops_(Seconds()) {
  for (size_t i = 0; i < kPartCount; ++i) durations_.emplace_back(Seconds());
}

void UpdateWatch::OnReceived(ConnectionId connection, const proto::RankMessage& message,
                             absl::Time now) {
  const std::lock_guard lock(mutex_);
  switch (message.kind_case()) {
    case proto::RankMessage::kPublish:
      return OnPublish(connection, message.publish().version(), now);
    case proto::RankMessage::kArrived:
      return OnArrived(connection, message.arrived(), now);
    case proto::RankMessage::kShown:
      return OnShown(connection, message.shown(), now);
    case proto::RankMessage::kFailed:
      return OnFailed(connection, message.failed());
    default:
      return;
  }
}

void UpdateWatch::OnSent(ConnectionId connection, const proto::ControllerMessage& message,
                         absl::Time now) {
  const std::lock_guard lock(mutex_);
  switch (message.kind_case()) {
    case proto::ControllerMessage::kPrepare:
      return OnPrepare(connection, message.prepare(), now);
    case proto::ControllerMessage::kStart:
      return OnStart(message.start(), now);
    case proto::ControllerMessage::kCommit:
      return OnCommit(message.commit(), now);
    case proto::ControllerMessage::kAbort:
      return OnAbort(message.abort());
    default:
      return;
  }
}

void UpdateWatch::OnClosed(ConnectionId connection) {
  const std::lock_guard lock(mutex_);
  for (auto entry = updates_.begin(); entry != updates_.end();) {
    entry = LoseWorker(connection, entry->second) ? updates_.erase(entry) : std::next(entry);
  }
}

void UpdateWatch::Forget() {
  const std::lock_guard lock(mutex_);
  updates_.clear();
  publications_.clear();
}

UpdateWatch::Update* UpdateWatch::Find(const proto::Round& round) {
  const auto found = updates_.find(KeyOf(round));
  return found == updates_.end() ? nullptr : &found->second;
}

void UpdateWatch::OnPublish(ConnectionId trainer, uint64_t version, absl::Time now) {
  Publication& publication = publications_[version];
  // A trainer that publishes a version again has withdrawn it before.
  if (publication.trainers.empty() || publication.trainers.contains(trainer)) {
    publication = {.first = now};
  }
  publication.trainers.insert(trainer);
  if (publications_.size() > kMostPublications) publications_.erase(publications_.begin());
}

void UpdateWatch::OnPrepare(ConnectionId worker, const proto::Prepare& prepare, absl::Time now) {
  if (prepare.catch_up()) return;
  Update* update = Find(prepare.round());
  if (update == nullptr) {
    const auto publication = publications_.find(prepare.version());
    Update begun = {
        .published = publication == publications_.end() ? now : publication->second.first,
        .prepared = now};
    // An update that goes on without lanes that died has begun with the earlier round.
    if (const Update* continued = Find(prepare.continues());
        prepare.has_continues() && continued != nullptr) {
      begun.published = continued->published;
      begun.prepared = continued->prepared;
      begun.started = continued->started;
      updates_.erase(KeyOf(prepare.continues()));
    } else {
      Observe(Part::kWait, begun.prepared - begun.published);
    }
    update = &(updates_[KeyOf(prepare.round())] = std::move(begun));
  }
  update->lacking.insert(worker);
  update->unsettled.insert(worker);
  // The map is ordered by term, so this forgets an update of the oldest one.
  if (updates_.size() > kMostUpdates) updates_.erase(updates_.begin());
}

void UpdateWatch::OnStart(const proto::Start& start, absl::Time now) {
  Update* update = Find(start.round());
  if (update == nullptr || update->started != absl::InfiniteFuture()) return;
  update->started = now;
  Observe(Part::kPrepare, now - update->prepared);
}

void UpdateWatch::OnArrived(ConnectionId worker, const proto::Arrived& arrived, absl::Time now) {
  Update* update = Find(arrived.round());
  if (update == nullptr || update->lacking.erase(worker) == 0) return;
  if (!update->lacking.empty() || update->started == absl::InfiniteFuture()) return;
  update->arrived = now;
  Observe(Part::kTransfer, now - update->started);
}

void UpdateWatch::OnCommit(const proto::Commit& commit, absl::Time now) {
  Update* update = Find(commit.round());
  if (update == nullptr || update->committed != absl::InfiniteFuture()) return;
  update->committed = now;
  if (update->arrived != absl::InfiniteFuture()) Observe(Part::kDecide, now - update->arrived);
}

void UpdateWatch::OnShown(ConnectionId worker, const proto::Shown& shown, absl::Time now) {
  Update* update = Find(shown.round());
  if (update == nullptr || update->unsettled.erase(worker) == 0) return;
  stops_.Observe(shown.pause_seconds());
  if (!update->unsettled.empty()) return;
  if (update->whole && update->committed != absl::InfiniteFuture()) {
    Observe(Part::kShow, now - update->committed);
    Observe(Part::kTotal, now - update->published);
  }
  updates_.erase(KeyOf(shown.round()));
}

void UpdateWatch::OnFailed(ConnectionId worker, const proto::Failed& failed) {
  Update* update = Find(failed.round());
  if (update == nullptr || !update->unsettled.contains(worker)) return;
  // Nothing else on a worker that takes part in a round fails with this code.
  if (failed.error().code() == static_cast<int>(absl::StatusCode::kDataLoss)) {
    ++digest_mismatches_;
  }
  // Before the decision, ABORT follows.
  if (update->committed == absl::InfiniteFuture()) return;
  if (LoseWorker(worker, *update)) updates_.erase(KeyOf(failed.round()));
}

void UpdateWatch::OnAbort(const proto::Abort& abort) {
  // Each member of the round is sent an ABORT; the first one counts.
  if (updates_.erase(KeyOf(abort.round())) == 0) return;
  const auto code = static_cast<absl::StatusCode>(abort.error().code());
  ++aborts_[absl::StatusCodeToString(code)];
}

bool UpdateWatch::LoseWorker(ConnectionId worker, Update& update) {
  if (update.unsettled.erase(worker) == 0) return false;
  update.whole = false;
  // Until the decision, the controller sends an ABORT for the loss.
  return update.unsettled.empty() && update.committed != absl::InfiniteFuture();
}

void UpdateWatch::Observe(Part part, absl::Duration duration) {
  durations_[static_cast<size_t>(part)].Observe(absl::ToDoubleSeconds(duration));
}

std::vector<prometheus::MetricFamily> UpdateWatch::Collect() const {
  Families families;
  prometheus::MetricFamily& durations = families.emplace_back(prometheus::MetricFamily{
      "waybill_update_duration_seconds",
      "Duration of the updates of groups, by stage; total is from the first publish until the last "
      "worker shows the version.",
      prometheus::MetricType::Histogram,
      {}});
  for (size_t i = 0; i < kPartCount; ++i) {
    durations.metric.push_back(durations_[i].Collect());
    durations.metric.back().label = {{"stage", kPartNames[i]}};
  }
  prometheus::MetricFamily& stops = families.emplace_back(
      prometheus::MetricFamily{"waybill_engine_stop_seconds",
                               "How long a worker's engine stood still to switch to a version.",
                               prometheus::MetricType::Histogram,
                               {}});
  stops.metric.push_back(stops_.Collect());

  const std::lock_guard lock(mutex_);
  prometheus::MetricFamily aborts = MakeCounters(
      "waybill_update_aborts_total",
      "Updates of groups that were given up after they had begun, by the error's status code.");
  for (const auto& [code, count] : aborts_) {
    AddSeries(aborts, {{"code", code}}, static_cast<double>(count));
  }
  families.push_back(std::move(aborts));
  prometheus::MetricFamily mismatches =
      MakeCounters("waybill_digest_mismatches_total",
                   "Updates of workers that failed because the data was not what was sent.");
  AddSeries(mismatches, {}, static_cast<double>(digest_mismatches_));
  families.push_back(std::move(mismatches));
  return families;
}

}  // namespace waybill
