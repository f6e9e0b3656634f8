// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/update_watch.h"

#include <prometheus/metric_type.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/rank_id.h"
#include "tools/waybill/observe/families.h"

namespace waybill {
namespace {

using Families = std::vector<prometheus::MetricFamily>;

constexpr const char* kPartNames[] = {"wait", "prepare", "transfer", "decide", "show", "total"};

// A job has a round for each of its groups at a time; what is beyond this is left over from terms
// that ended.
constexpr size_t kMostUpdates = 8192;
// Groups whose last update is kept, also of those that are gone.
constexpr size_t kMostEnded = 8192;
// Versions whose publishes may wait at a time. Trainers rarely have two.
constexpr size_t kMostPublications = 64;

prometheus::Histogram::BucketBoundaries Seconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
          1,     2.5,    5,     10,   25,    50,   100, 250,  600};
}

}  // namespace

UpdateWatch::UpdateWatch(std::vector<WatchListener*> listeners)
    : listeners_(std::move(listeners)), stops_(Seconds()) {
  for (size_t i = 0; i < kPartCount; ++i) durations_.emplace_back(Seconds());
}

void UpdateWatch::OnJoined(ConnectionId connection, const proto::Join& join) {
  const std::lock_guard lock(mutex_);
  const char* role = join.role() == static_cast<uint32_t>(Role::kTrainer) ? "trainer" : "worker";
  Rank& rank = ranks_[connection];
  rank = {join.any_rank() ? role : absl::StrCat(role, " ", join.rank()), join.group()};
  for (WatchListener* listener : listeners_) listener->OnRankJoined(rank);
}

void UpdateWatch::OnReceived(ConnectionId connection, const proto::RankMessage& message,
                             absl::Time now) {
  const std::lock_guard lock(mutex_);
  switch (message.kind_case()) {
    case proto::RankMessage::kPublish:
      return OnPublish(connection, message.publish(), now);
    case proto::RankMessage::kArrived:
      return OnArrived(connection, message.arrived(), now);
    case proto::RankMessage::kSent:
      if (message.sent().has_report()) OnReport(connection, message.sent().report());
      return;
    case proto::RankMessage::kShown:
      OnReport(connection, message.shown().report());
      return OnShown(connection, message.shown(), now);
    case proto::RankMessage::kFailed:
      return OnFailed(connection, message.failed(), now);
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
      return OnAbort(message.abort(), now);
    default:
      return;
  }
}

void UpdateWatch::OnClosed(ConnectionId connection, absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (const auto gone = ranks_.extract(connection); !gone.empty()) {
    for (WatchListener* listener : listeners_) listener->OnRankGone(gone.mapped());
  }
  for (auto entry = updates_.begin(); entry != updates_.end();) {
    const auto next = std::next(entry);
    if (LoseWorker(connection, entry->second)) End(entry, now);
    entry = next;
  }
}

void UpdateWatch::Forget() {
  const std::lock_guard lock(mutex_);
  ranks_.clear();
  updates_.clear();
  publications_.clear();
}

UpdateWatch::Update* UpdateWatch::Find(const proto::Round& round) {
  const auto found = updates_.find(KeyOf(round));
  return found == updates_.end() ? nullptr : &found->second;
}

void UpdateWatch::OnPublish(ConnectionId trainer, const proto::Publish& publish, absl::Time now) {
  Publication& publication = publications_[publish.version()];
  // A trainer that publishes a version again has withdrawn it before.
  if (publication.trainers.empty() || publication.trainers.contains(trainer)) {
    publication = {.first = now};
  }
  publication.trainers.insert(trainer);
  if (!publication.parent && !publish.traceparent().empty()) {
    // Ranks send what they have checked. Anything else is no reason to measure less.
    if (auto parent = ParseTraceParent(publish.traceparent()); parent.ok()) {
      publication.parent = *std::move(parent);
    }
  }
  if (publications_.size() > kMostPublications) publications_.erase(publications_.begin());
}

void UpdateWatch::OnPrepare(ConnectionId worker, const proto::Prepare& prepare, absl::Time now) {
  if (prepare.catch_up()) return;
  Update* update = Find(prepare.round());
  if (update == nullptr) {
    const auto publication = publications_.find(prepare.version());
    Update begun = {
        .group = ranks_[worker].group,
        .version = prepare.version(),
        .published = publication == publications_.end() ? now : publication->second.first,
        .prepared = now};
    if (publication != publications_.end()) begun.parent = publication->second.parent;
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
  ++update->workers;
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

void UpdateWatch::OnReport(ConnectionId connection, const proto::RankReport& report) {
  const auto rank = ranks_.find(connection);
  if (rank == ranks_.end()) return;
  for (WatchListener* listener : listeners_) listener->OnReported(rank->second, report);
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
  End(updates_.find(KeyOf(shown.round())), now);
}

void UpdateWatch::OnFailed(ConnectionId worker, const proto::Failed& failed, absl::Time now) {
  Update* update = Find(failed.round());
  if (update == nullptr || !update->unsettled.contains(worker)) return;
  // Nothing else on a worker that takes part in a round fails with this code.
  if (failed.error().code() == static_cast<int>(absl::StatusCode::kDataLoss)) {
    ++digest_mismatches_;
  }
  // Before the decision, ABORT follows.
  if (update->committed == absl::InfiniteFuture()) return;
  if (LoseWorker(worker, *update)) End(updates_.find(KeyOf(failed.round())), now);
}

void UpdateWatch::OnAbort(const proto::Abort& abort, absl::Time now) {
  // Each member of the round is sent an ABORT; the first one counts.
  const auto aborted = updates_.find(KeyOf(abort.round()));
  if (aborted == updates_.end()) return;
  failures_.push_front(Remove(aborted, abort.error().message(), now));
  if (failures_.size() > kMostFailures) failures_.pop_back();
  const auto code = static_cast<absl::StatusCode>(abort.error().code());
  ++aborts_[absl::StatusCodeToString(code)];
}

bool UpdateWatch::LoseWorker(ConnectionId worker, Update& update) {
  if (update.unsettled.erase(worker) == 0) return false;
  update.whole = false;
  // Until the decision, the controller sends an ABORT for the loss.
  return update.unsettled.empty() && update.committed != absl::InfiniteFuture();
}

void UpdateWatch::End(std::map<Key, Update>::iterator entry, absl::Time now) {
  const std::string group = entry->second.group;
  ended_[group] = Remove(entry, /*error=*/"", now);
  if (ended_.size() > kMostEnded) {
    ended_.erase(std::min_element(ended_.begin(), ended_.end(), [](const auto& a, const auto& b) {
      return a.second.at < b.second.at;
    }));
  }
}

UpdateWatch::Ended UpdateWatch::Remove(std::map<Key, Update>::iterator entry,
                                       const std::string& error, absl::Time now) {
  Ended ended = {.progress = ProgressOf(entry->second, now), .at = now};
  ended.progress.error = error;
  updates_.erase(entry);
  for (WatchListener* listener : listeners_) listener->OnUpdateEnded(ended.progress);
  return ended;
}

void UpdateWatch::Observe(Part part, absl::Duration duration) {
  durations_[static_cast<size_t>(part)].Observe(absl::ToDoubleSeconds(duration));
}

UpdateWatch::Progress UpdateWatch::ProgressOf(const Update& update, absl::Time until) {
  Progress progress = {.group = update.group,
                       .version = update.version,
                       .workers = update.workers,
                       .arrived = update.workers - update.lacking.size(),
                       .parent = update.parent};
  const absl::Time begins[] = {update.published, update.prepared,  update.started,
                               update.arrived,   update.committed, absl::InfiniteFuture()};
  for (size_t i = 0; i + 1 < std::size(begins) && begins[i] != absl::InfiniteFuture(); ++i) {
    progress.parts.emplace_back(kPartNames[i], std::min(begins[i + 1], until) - begins[i]);
    progress.total += progress.parts.back().second;
  }
  return progress;
}

UpdateWatch::Progress UpdateWatch::Ended::At(absl::Time now) const {
  Progress aged = progress;
  aged.age = now - at;
  return aged;
}

std::vector<UpdateWatch::Progress> UpdateWatch::GroupProgress(absl::Time now) const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, Progress> all;
  for (const auto& [group, ended] : ended_) all[group] = ended.At(now);
  for (const auto& [key, update] : updates_) {
    all[update.group] = ProgressOf(update, now);
    all[update.group].running = true;
  }
  std::vector<Progress> sorted;
  sorted.reserve(all.size());
  for (auto& [group, progress] : all) sorted.push_back(std::move(progress));
  return sorted;
}

std::vector<UpdateWatch::Progress> UpdateWatch::Failures(absl::Time now) const {
  const std::lock_guard lock(mutex_);
  std::vector<Progress> failures;
  failures.reserve(failures_.size());
  for (const Ended& ended : failures_) failures.push_back(ended.At(now));
  return failures;
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
