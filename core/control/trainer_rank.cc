// SPDX-License-Identifier: Apache-2.0

#include "core/control/trainer_rank.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/plan/plan_check.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

SessionOptions WithManifest(SessionOptions options, const Manifest& manifest,
                            const Fabric& fabric) {
  options.manifest = EncodeWithNics(manifest, fabric);
  options.nics = ListNics(fabric);
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerRank>> TrainerRank::Create(
    SessionOptions options, const SenderEngineOptions& engine, Manifest manifest,
    std::vector<MemorySpan> regions, Fabric* fabric, RankActions* actions) {
  std::unique_ptr<Image> image;
  if (engine.has_images()) {
    WAYBILL_ASSIGN_OR_RETURN(
        image, Image::Create(
                   manifest, regions,
                   engine.changes == Changes::kNever ? VersionsKept::kNewest : VersionsKept::kTwo,
                   engine.stage_threads, [fabric] { fabric->Wake(); }));
    regions = image->regions();
  }
  std::unique_ptr<TrainerRank> rank(new TrainerRank(std::move(options), std::move(manifest),
                                                    std::move(regions), fabric, actions));
  if (image != nullptr) {
    rank->images_ = std::make_unique<ImagePublisher>(
        std::move(image), &rank->session_,
        [actions](Notice notice) { actions->Tell(std::move(notice)); });
  }
  WAYBILL_ASSIGN_OR_RETURN(rank->staging_, StagingArea::Create(fabric, engine));
  WAYBILL_ASSIGN_OR_RETURN(rank->sample_, ReplicaSample::Create(&rank->manifest_, rank->regions_));
  rank->AddSources(rank->regions_);
  if (rank->images_) rank->AddSources(rank->images_->versions().before);
  return rank;
}

TrainerRank::TrainerRank(SessionOptions options, Manifest manifest, std::vector<MemorySpan> regions,
                         Fabric* fabric, RankActions* actions)
    : manifest_(std::move(manifest)),
      regions_(std::move(regions)),
      fabric_(*fabric),
      actions_(*actions),
      nics_(fabric),
      session_(WithManifest(std::move(options), manifest_, *fabric), this) {
  fabric_events_.reserve(256);
}

void TrainerRank::AddSources(absl::Span<const MemorySpan> regions) {
  for (uint32_t r = 0; r < regions.size(); ++r) {
    staging_->AddSource(regions[r], manifest_.region_name(r));
  }
}

void TrainerRank::Join(uint64_t token, absl::Time deadline, absl::Time now) {
  session_.Join(token, deadline, now);
  HandleEvents(now);
}

void TrainerRank::Publish(uint64_t token, const PublishCommand& command, absl::Time now) {
  report_.published = now;
  if (const absl::Status refused = CheckSelection(command.selection); !refused.ok()) {
    return actions_.Tell(
        {.kind = Notice::Kind::kPublished,
         .token = token,
         .version = command.version,
         .status = While(absl::StrCat("publish version ", command.version), refused)});
  }
  images_ ? images_->Publish(token, command) : session_.Publish(token, command, now);
  HandleEvents(now);
}

absl::Status TrainerRank::CheckSelection(const Selection& selection) const {
  WAYBILL_RETURN_IF_ERROR(selection.Check());
  if (selection.everything() || staging_->options().changes != Changes::kNever) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "a version of a part of the tensors is made from the version before it, which a trainer "
      "keeps that has the option `changes`");
}

void TrainerRank::Proceed(uint64_t token, const absl::Status& done, absl::Time now) {
  images_ ? images_->Proceed(token, done) : session_.Proceed(token, done, now);
  HandleEvents(now);
}

void TrainerRank::Release(uint64_t token, absl::Time now) {
  session_.Release(token, now);
  HandleEvents(now);
}

void TrainerRank::Cancel(uint64_t token, absl::Time now) {
  images_ ? images_->Cancel(token, now) : session_.Cancel(token, now);
  HandleEvents(now);
}

void TrainerRank::Leave(uint64_t token, absl::Time now) {
  if (images_) images_->Leave();
  session_.Leave(token, now);
  HandleEvents(now);
}

void TrainerRank::OnStreamOpen(absl::Time now) {
  session_.OnStreamOpen(now);
  HandleEvents(now);
}

void TrainerRank::OnStreamEnd(const absl::Status& status, absl::Time now) {
  session_.OnStreamEnd(status, now);
  HandleEvents(now);
}

void TrainerRank::OnMessage(const proto::ControllerMessage& message, absl::Time now) {
  now_ = now;
  session_.OnMessage(message, now);
  HandleEvents(now);
}

void TrainerRank::Step(absl::Time now) {
  PollFabric();
  for (bool again = true; again;) {
    const uint64_t before = staging_->slots().changes();
    for (auto& [name, group] : groups_) group.sender->engine().Step();
    // Another engine may be waiting for a slot that this engine has freed.
    again = groups_.size() > 1 && staging_->slots().changes() != before;
  }
  HandleEvents(now);
  if (auto nics = nics_.Look(now)) {
    session_.OnNics(*std::move(nics));
    session_.Report();
  }
  if (now >= session_.next_deadline()) session_.OnTime(now);
  HandleEvents(now);
}

void TrainerRank::PollFabric() {
  fabric_events_.clear();
  fabric_.Poll(fabric_events_);
  for (const FabricEvent& event : fabric_events_) {
    for (auto& [name, group] : groups_) {
      if (group.sender->engine().Handle(event)) break;
    }
  }
}

absl::Time TrainerRank::next_deadline() const {
  if (!events_.empty()) return absl::InfinitePast();
  return std::min(session_.next_deadline(),
                  images_ ? images_->next_deadline() : absl::InfiniteFuture());
}

TransferCounts TrainerRank::counts() const {
  TransferCounts counts;
  for (const auto& [name, group] : groups_) {
    if (group.version == report_.version) counts += group.sender->engine().counts();
  }
  return counts;
}

TrainerReport TrainerRank::report() const {
  TrainerReport report = report_;
  report.counts = counts();
  for (const auto& [name, group] : groups_) {
    if (group.version == report.version)
      AddSpans(group.sender->engine().timeline().spans(), report.stages);
  }
  report.groups = session_.groups();
  if (images_) {
    report.left_out_elements = images_->image().left_out_elements();
    report.unselected_bytes = images_->image().unselected_bytes();
  }
  return report;
}

void TrainerRank::UpdateReport() {
  ++report_changes_;
  report_.planned_bytes = 0;
  report_.lanes.clear();
  for (const auto& [name, group] : groups_) {
    report_.planned_bytes += group.planned_bytes;
    report_.lanes.insert(report_.lanes.end(), group.lanes.begin(), group.lanes.end());
  }
}

// --- commands of the session ---

absl::StatusOr<proto::Offers> TrainerRank::SetPlan(TermPlan plan) {
  // An impostor of the controller must not get at memory beyond the tensors that this rank has
  // registered.
  WAYBILL_RETURN_IF_ERROR(CheckRankPlan(plan.routes, manifest_, Role::kTrainer));
  Group& group = groups_[plan.group];
  if (group.sender == nullptr) {
    group.sender = std::make_unique<GroupSender>(
        &fabric_, staging_.get(),
        [this, name = plan.group](const SenderEvent& event) { events_.emplace_back(name, event); });
  }
  group.connected = false;
  group.planned_bytes = plan.routes.routes.total_bytes();
  group.lanes.clear();
  UpdateReport();
  return group.sender->SetPlan(std::move(plan), regions_);
}

absl::Status TrainerRank::Connect(const std::string& group, const proto::Connect& connect) {
  return groups_.at(group).sender->Connect(connect);
}

absl::Status TrainerRank::SetBufferAddress(const std::string& group, uint32_t worker,
                                           uint32_t buffer_index, const proto::Buffer& buffer) {
  return groups_.at(group).sender->SetBufferAddress(worker, buffer_index, buffer);
}

// Adds nothing if the tensors cannot be read. START then fails and names them.
void TrainerRank::Sample(uint64_t version, proto::Publish& publish) {
  if (!staging_->RenewSources().ok()) return;
  const absl::StatusOr<std::vector<ReplicaSample::Digest>> sample =
      sample_->Take(version, images_ ? images_->versions().newest : regions_);
  if (!sample.ok()) return;
  for (const ReplicaSample::Digest& digest : *sample) {
    publish.add_sampled_units(digest.unit);
    publish.add_sampled_digests(digest.digest);
  }
}

absl::Status TrainerRank::Start(const std::string& name, const UpdateId& update,
                                const PublishCommand& publish, const proto::Start& start) {
  Group& group = groups_.at(name);
  if (report_.version != update.version) {
    report_.version = update.version;
    report_.started = now_;
    report_.enqueued = report_.maxima_cpu = report_.trade_cpu = absl::ZeroDuration();
    report_.nonfinite.clear();
  }
  group.version = update.version;
  const absl::Time begin = SteadyNow();
  absl::Status status = group.sender->Start(
      update, start, publish.fail_on_nonfinite ? NonFiniteRule::kRefused : NonFiniteRule::kKept,
      SourcesAre::kThere, images_ ? Choose(group, publish, start) : VersionsInMemory{});
  report_.enqueued += SteadyNow() - begin;
  ++report_changes_;
  return status;
}

VersionsInMemory TrainerRank::Choose(Group& group, const PublishCommand& publish,
                                     const proto::Start& start) {
  VersionsInMemory versions = images_->versions();
  group.timed.reset();
  if (staging_->options().changes != Changes::kAuto) return versions;
  const auto has_base = [&](const proto::Target& target) {
    return versions.version_before != 0 && target.base() == versions.version_before;
  };
  const auto bases = std::count_if(start.targets().begin(), start.targets().end(), has_base);
  const bool all = bases == start.targets_size(), none = bases == 0;
  Sent sent = none ? Sent::kEverything : Sent::kChanges;
  if (all && !none) sent = group.choice.Next();
  if (sent == Sent::kEverything) versions.version_before = 0;
  // The time of a commit that waits for a word says nothing.
  if ((all || none) && !publish.hold_commit) group.timed = {publish.version, sent, now_};
  return versions;
}

void TrainerRank::NoteOutcome(const Notice& outcome) {
  const auto group = groups_.find(outcome.group);
  if (group == groups_.end() || !group->second.timed ||
      group->second.timed->version != outcome.version) {
    return;
  }
  const Timed timed = *std::exchange(group->second.timed, std::nullopt);
  if (outcome.status.ok()) group->second.choice.Record(timed.sent, now_ - timed.begun);
}

void TrainerRank::ForgetGroup(const std::string& group) {
  groups_.erase(group);
  std::erase_if(events_, [&](const auto& event) { return event.first == group; });
  std::erase_if(report_.rates, [&](const LaneRate& rate) { return rate.group == group; });
  UpdateReport();
}

// --- events of the engines ---

void TrainerRank::HandleEvents(absl::Time now) {
  now_ = now;
  do {
    while (!events_.empty()) {
      const auto [group, event] = std::move(events_.front());
      events_.pop_front();
      Handle(group, event, now);
    }
    if (images_) images_->Step(now);
  } while (!events_.empty());
}

void TrainerRank::Handle(const std::string& name, const SenderEvent& event, absl::Time now) {
  Group& group = groups_.at(name);
  switch (event.kind) {
    case SenderEvent::Kind::kConnected:
      group.connected = true;
      group.lanes = group.sender->engine().ReportLanes();
      for (LaneReport& lane : group.lanes) lane.group = name;
      UpdateReport();
      return session_.OnConnected(name, group.lanes);
    case SenderEvent::Kind::kPeerFailed:
      if (group.connected) session_.OnNics(ListNics(fabric_));  // Before the new plan that follows.
      return session_.OnLaneFailed(name, event.peer, event.status);
    case SenderEvent::Kind::kRefused:
      return session_.OnRefused(name, event.status.ok() ? DescribeNonFinite(group) : event.status);
    case SenderEvent::Kind::kSent:
      NoteSent(name, group, event, now);
      return session_.OnSent(name, event.update, now);
    case SenderEvent::Kind::kStopped:
      return session_.OnStopped(name, event.update, now);
  }
}

void TrainerRank::NoteSent(const std::string& name, const Group& group, const SenderEvent& event,
                           absl::Time now) {
  const Timeline& timeline = group.sender->engine().timeline();
  report_.sent = now;
  report_.maxima_cpu += absl::Nanoseconds(timeline.cpu_ns(Timeline::Work::kMaxima));
  report_.trade_cpu += absl::Nanoseconds(timeline.cpu_ns(Timeline::Work::kTrade));
  for (const NonFinite& found : group.sender->engine().FindNonFinite()) {
    const auto same = std::find_if(report_.nonfinite.begin(), report_.nonfinite.end(),
                                   [&](const NonFinite& n) { return n.shard == found.shard; });
    if (same == report_.nonfinite.end()) {
      report_.nonfinite.push_back(found);
    } else {
      same->elements = std::max(same->elements, found.elements);
    }
  }
  report_.ring_high_water_bytes = staging_->high_water_bytes();
  report_.total += event.counts;
  std::erase_if(report_.rates, [&](const LaneRate& rate) { return rate.group == name; });
  for (LaneRate& rate : group.sender->engine().LaneRates()) {
    rate.group = name;
    report_.rates.push_back(std::move(rate));
  }
  ++report_changes_;
}

absl::Status TrainerRank::DescribeNonFinite(const Group& group) const {
  std::string text;
  for (const NonFinite& found : group.sender->engine().FindNonFinite()) {
    const ShardView shard = manifest_.shard(found.shard);
    absl::StrAppend(&text, text.empty() ? "" : "; ", "tensor \"",
                    manifest_.tensor_name(shard.tensor_index), "\" ", ToString(shard.box), " has ",
                    found.elements, " NaNs or infinities");
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace waybill
