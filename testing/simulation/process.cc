// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/process.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace waybill::simulation {
namespace {

// A call ends by its deadline plus this.
constexpr absl::Duration kMargin = absl::Seconds(1);
constexpr std::byte kGarbage{0xEE};
constexpr uint64_t kSimulatedChunkBytes = 4 << 10;
// Checks that take long, and that would still fail some steps later.
constexpr uint64_t kStepsOfSlowChecks = 8;

// Half of the trainers stage everything and announce nothing, and half of them the other way round.
SenderEngineOptions SendingOf(uint32_t rank) {
  return {.ring_bytes = 8 << 10,
          .chunk_bytes = kSimulatedChunkBytes,
          .stage_threads = 0,
          .direct_run_bytes = rank % 2 == 0 ? 1 : kDirectRunBytes,
          .announced_bytes = rank % 2 == 0 ? 1 : kChunkBytes};
}

}  // namespace

Process::Process(Run* run, const Job* job, LoopbackNetwork* network, ProcessHost* host, RankId id,
                 uint64_t incarnation)
    : run_(*run),
      job_(*job),
      host_(*host),
      place_(id),
      id_(id),
      incarnation_(incarnation),
      name_(absl::StrCat(ToString(id), incarnation > 1 ? absl::StrCat("#", incarnation) : "")),
      fabric_(std::make_unique<FaultyFabric>(network->Join(name()))) {
  SessionOptions options;
  options.id = id_;
  options.job = "simulated";
  options.any_rank = job_.any_rank && job_.HoldsTheSame(id_);
  options.controllers = job_.controllers;
  options.world = job_.WorldOf(id_);
  options.fetches = fetches();
  options.incarnation = incarnation_ * 1000 + id_.rank * 2 + (is_trainer() ? 0 : 1) + 1;
  const absl::Status made = is_trainer() ? MakeTrainer(options) : MakeWorker(options);
  if (!made.ok()) {
    run_.Violate(absl::StrCat("create: ", made.ToString()));
    return;
  }
  const absl::Time deadline = run_.now() + absl::Seconds(60);
  due_[++last_token_] = deadline;
  is_trainer() ? trainer_->Join(last_token_, deadline, run_.now())
               : worker_->Join(last_token_, deadline, run_.now());
}

Process::~Process() {
  snapshot_.reset();
  trainer_.reset();
  worker_.reset();
}

std::vector<MemorySpan> Process::MakeMemory(const Manifest& manifest) {
  std::vector<MemorySpan> spans;
  for (uint32_t r = 0; r < manifest.region_count(); ++r) {
    memory_.emplace_back(manifest.region_bytes(r), kGarbage);
  }
  for (auto& region : memory_) spans.push_back({MemoryKind::kHost, region.data(), region.size()});
  return spans;
}

absl::Status Process::MakeTrainer(SessionOptions options) {
  Manifest manifest = job_.ManifestOf(id_);
  std::vector<MemorySpan> regions = MakeMemory(manifest);
  SenderEngineOptions engine = SendingOf(id_.rank);
  engine.images = job_.images;
  if (job_.changes) engine.changes = job_.chooses_changes ? Changes::kAuto : Changes::kAlways;
  auto made = TrainerRank::Create(std::move(options), engine, std::move(manifest),
                                  std::move(regions), fabric_.get(), this);
  if (!made.ok()) return made.status();
  trainer_ = *std::move(made);
  return absl::OkStatus();
}

absl::Status Process::MakeWorker(SessionOptions options) {
  Manifest manifest = job_.ManifestOf(id_);
  std::vector<MemorySpan> user_regions;
  if (job_.mode != Mode::kShadow) user_regions = MakeMemory(manifest);
  std::set<Notice::Kind> asked;
  if (job_.asked) {
    asked = {Notice::Kind::kPrepare, Notice::Kind::kArrived, Notice::Kind::kCommit};
  }
  auto made = WorkerRank::Create(
      std::move(options),
      {.mode = job_.mode, .verify_threads = 0, .chunk_bytes = kSimulatedChunkBytes},
      SendingOf(id_.rank), std::move(manifest), user_regions, std::move(asked), fabric_.get(),
      this);
  if (!made.ok()) return made.status();
  worker_ = *std::move(made);
  return absl::OkStatus();
}

void Process::OnStreamOpen() {
  trainer_ ? trainer_->OnStreamOpen(run_.now()) : worker_->OnStreamOpen(run_.now());
  HandleNotices();
}

void Process::OnStreamEnd() {
  stream_ = 0;
  mute_ = false;
  const absl::Status why = absl::UnavailableError("the stream ended");
  trainer_ ? trainer_->OnStreamEnd(why, run_.now()) : worker_->OnStreamEnd(why, run_.now());
  HandleNotices();
}

void Process::OnMessage(const proto::ControllerMessage& message) {
  // The user may let go of a version while it is being sent again.
  if (holding_ && message.has_start() && run_.Below(2) == 0) {
    release_at_ = std::min(release_at_, run_.now() + run_.UpTo(absl::Milliseconds(5)));
  }
  if (trainer_ && message.has_start()) CheckComposition(message.start());
  const proto::ControllerMessage received = Received(message);
  trainer_ ? trainer_->OnMessage(received, run_.now()) : worker_->OnMessage(received, run_.now());
  if (message.has_assigned()) id_.rank = message.assigned().rank();
  HandleNotices();
}

void Process::CheckComposition(const proto::Start& start) {
  const auto published = compositions_.find(start.attempt());
  if (published == compositions_.end()) return;
  host_.OnStart(start.version(), start.composition());
  if (published->second == start.composition()) return;
  run_.Violate(absl::StrCat("composed: ", name(), " is to send version ", start.version(),
                            " as one of composition ", start.composition(), ", and has made it of ",
                            published->second));
}

proto::ControllerMessage Process::Received(proto::ControllerMessage message) {
  if (misdirected_ == Misdirected::kPlan && message.has_plan()) {
    message.mutable_plan()->set_manifest_hash("another");
  } else if (misdirected_ == Misdirected::kStart && message.has_start()) {
    message.mutable_start()->set_plan_hash(message.start().plan_hash() + 1);
  } else if (misdirected_ == Misdirected::kBuffer && message.start().targets_size() > 0) {
    proto::Target* target = message.mutable_start()->mutable_targets(0);
    target->set_generation(target->generation() + 1);
  } else {
    return message;
  }
  run_.Note(name(), " gets a message that is not for it");
  misdirected_ = Misdirected::kNothing;
  return message;
}

void Process::Step() {
  const uint64_t events_before = fabric_->polled_events();
  const absl::Time now = run_.now();
  if (now < looks_away_until_) fabric_->SkipNextPoll();
  if (trainer_) trainer_->Step(now);
  if (now >= proceed_at_) {
    proceed_at_ = absl::InfiniteFuture();
    const absl::Status done =
        run_.Below(8) == 0 ? absl::InternalError("the GPU fails") : absl::OkStatus();
    trainer_->Proceed(publish_token_, done, now);
  }
  TryWhatDoesNotFit();
  if (now >= release_at_) {
    release_at_ = absl::InfiniteFuture();
    due_[++last_token_] = now + absl::Seconds(1);
    trainer_->Release(last_token_, now);
    HandleNotices();
    if (job_.varied && holding_ && unfit_token_ == 0) {  // It is being released.
      due_[unfit_token_ = ++last_token_] = now + absl::Seconds(1);
      trainer_->Release(unfit_token_, now);
    }
  }
  if (now >= paused_until_) Resume();
  if (MayFetch() && now >= fetch_at_) Fetch();
  if (worker_) {
    worker_->Step(now);
    if (worker_->shown_version() != last_shown_) {
      const uint64_t before = std::exchange(last_shown_, worker_->shown_version());
      host_.OnShown(*this, before, last_shown_);
      shown_at_ = run_.now();
    }
    if (!left_) CheckShown("after a step");
    CheckBases();
    if (snapshot_ && now >= snapshot_until_) {
      CheckShown("when a reader ends");
      run_.Note(name(), ": the reader of version ", snapshot_->version(), " ends");
      EndReader();
    }
  }
  HandleNotices();
  GiveAnswers();
  interrupted_ = false;
  if (fabric_->polled_events() != events_before) run_.SetActive();
}

absl::Time Process::next_event() const {
  absl::Time next = stopped_until_;
  if (!stopped()) {
    next = trainer_ ? std::min({trainer_->next_deadline(), release_at_, proceed_at_})
                    : worker_->next_deadline();
    if (MayFetch()) next = std::min(next, fetch_at_);
    if (snapshot_) next = std::min(next, snapshot_until_);
    next = std::min(next, paused_until_);
    for (const Pending& pending : pending_answers_) next = std::min(next, pending.at);
    if (run_.now() < looks_away_until_) next = std::min(next, looks_away_until_);
  }
  for (const auto& [token, deadline] : due_) {
    next = std::min(next, std::max(run_.now(), deadline + kMargin + absl::Milliseconds(250)));
  }
  return next;
}

void Process::Stop(absl::Duration time) {
  stopped_until_ = run_.now() + time;
  here_since_ = std::max(here_since_, stopped_until_);
  interrupted_ = true;
  fabric_->SkipNextPoll();
}

void Process::GoOn() { stopped_until_ = std::min(stopped_until_, run_.now()); }

void Process::ExcuseUntil(absl::Time time) {
  for (auto& [token, deadline] : due_) deadline = std::max(deadline, time);
  here_since_ = std::max(here_since_, time);
}

void Process::Publish(uint64_t version, absl::Duration timeout, bool selects) {
  const bool waits = version % 5 == 0;
  const Disagreement how = std::exchange(disagreement_, Disagreement::kNone);
  if (how == Disagreement::kNextVersion) ++version;
  const auto bytes = job_.BytesOf(id_, how == Disagreement::kOtherBytes ? version + 1 : version);
  std::copy(bytes[0].begin(), bytes[0].end(), memory_[0].begin());
  if (how == Disagreement::kNotANumber) memory_[0][0] = memory_[0][1] = std::byte{0xFF};
  if (how != Disagreement::kNone) run_.Note(name(), " publishes unlike others");
  publishing_ = version;
  publish_token_ = ++last_token_;
  const absl::Time deadline = run_.now() + timeout;
  due_[publish_token_] = deadline;
  if (waits) proceed_at_ = run_.now() + run_.UpTo(absl::Milliseconds(100));
  trainer_->Publish(publish_token_,
                    {.version = version,
                     .deadline = deadline,
                     .digests_off = how == Disagreement::kNoDigests,
                     .fail_on_nonfinite = job_.quantised,
                     .until_committed = version % 3 == 0 && !Holds(version),
                     .waits_for = waits ? "the GPU has not reached its event" : "",
                     .hold = Holds(version),
                     .hold_commit = WaitsForWord(version) || how == Disagreement::kHoldsCommit,
                     .max_behind = MaxBehind(version),
                     .selection = {.tensors = selects ? std::vector<std::string>{"*"}
                                                      : std::vector<std::string>()}},
                    run_.now());
  HandleNotices();
}

bool Process::MayFetch() const {
  return fetches() && joined_ && !gone() && !leaving_ && fetch_token_ == 0;
}

void Process::Fetch() {
  fetch_token_ = ++last_token_;
  due_[fetch_token_] = run_.now() + absl::Milliseconds(200) + run_.UpTo(absl::Seconds(8));
  // Any version, or a newer one than it has.
  const uint64_t at_least = run_.Below(2) == 0 ? 0 : worker_->shown_version() + 1;
  wanted_ = std::max(host_.newest_decided(), at_least);
  worker_->Fetch(fetch_token_, at_least, due_[fetch_token_], run_.now());
}

void Process::TryWhatDoesNotFit() {
  if (unfit_token_ != 0 || run_.Below(64) != 0) return;
  if (job_.varied) HandleNotices();
  const absl::Time now = run_.now();
  const auto begin = [&] { due_[unfit_token_ = ++last_token_] = now + absl::Seconds(1); };
  const bool holds = trainer_ && holding_ && release_at_ != absl::InfiniteFuture();
  if (!left_ && !holds) {
    if (!job_.varied || ended_) return;
    if (WaitsForWord(publishing_) && run_.Below(4) == 0) {
      return trainer_->Decide(publishing_, absl::CancelledError("the user will not"), now);
    }
    begin();
    if (trainer_ && !leaving_ && run_.Below(2) == 0) {  // Too early, or too late.
      return trainer_->Publish(unfit_token_, {.version = 0, .deadline = due_[unfit_token_]}, now);
    }
    return trainer_ ? trainer_->Join(unfit_token_, due_[unfit_token_], now)
                    : worker_->Join(unfit_token_, due_[unfit_token_], now);
  }
  begin();
  if (trainer_ && (!left_ || run_.Below(2) == 0)) {  // What is held has to be released first.
    trainer_->Publish(unfit_token_, {.version = ~uint64_t{0}, .deadline = due_[unfit_token_]}, now);
  } else {
    trainer_ ? trainer_->Leave(unfit_token_, now) : worker_->Leave(unfit_token_, now);
  }
}

void Process::CancelPublish() {
  if (!trainer_ || publishing_ == 0) return;
  trainer_->Cancel(publish_token_, run_.now());
  HandleNotices();
}

void Process::TakeSnapshot(absl::Duration time, absl::Duration next) {
  if (!worker_ || snapshot_) return;
  absl::StatusOr<Snapshot> taken = worker_->TakeSnapshot("the simulation");
  if (!taken.ok()) return;
  snapshot_ = *std::move(taken);
  snapshot_until_ = run_.now() + time;
  next_reader_ = next;
}

void Process::EndReader() {
  const std::optional<Snapshot> earlier = std::exchange(snapshot_, std::nullopt);
  if (leaving_ || next_reader_ == absl::ZeroDuration()) return;
  TakeSnapshot(next_reader_, next_reader_);
}

void Process::Leave() {
  if (left_) return;
  leaving_ = true;
  if (!job_.varied || run_.Below(2) == 0) snapshot_.reset();
  due_[++last_token_] = run_.now() + absl::Seconds(11);
  trainer_ ? trainer_->Leave(last_token_, run_.now()) : worker_->Leave(last_token_, run_.now());
  HandleNotices();
}

void Process::Calm() {
  mute_ = false;
  looks_away_until_ = absl::InfinitePast();
  mood_ = Mood::kAccept;
  disagreement_ = Disagreement::kNone;
  misdirected_ = Misdirected::kNothing;
  if (paused_until_ != absl::InfiniteFuture()) paused_until_ = run_.now();
  snapshot_until_ = std::min(snapshot_until_, run_.now());
  for (Pending& pending : pending_answers_) pending.at = std::min(pending.at, run_.now());
}

void Process::CheckCalls() {
  // Nobody can be told while the process does not run.
  if (stopped()) return ExcuseUntil(stopped_until_);
  for (const auto& [token, deadline] : due_) {
    if (run_.now() > deadline + kMargin + absl::Milliseconds(200)) {
      run_.Violate(absl::StrCat("bounded: ", name(), ": a call has not ended ",
                                absl::FormatDuration(run_.now() - deadline),
                                " after its deadline"));
      return;
    }
  }
}

void Process::CheckGrowth() {
  const size_t peers = job_.most_ranks - 1;
  const size_t lanes = fabric_->open_lanes();
  // Two ranks without NICs have one lane, or four.
  if (lanes > 4 * peers || fabric_->known_regions() > 16) {
    run_.Violate(absl::StrCat("no growth: ", name(), " has ", lanes, " lanes to ", peers,
                              " peers, and ", fabric_->known_regions(), " regions"));
  }
}

// What is shown, and what a reader holds, is every byte of its version.
const std::vector<std::vector<std::byte>>& Process::BytesToShow(uint64_t version) {
  if (std::pair(id_, version) != std::pair(checked_.id, checked_.version)) {
    checked_ = {id_, version, job_.BytesOf(id_, version)};
  }
  return checked_.bytes;
}

void Process::CheckShown(absl::string_view when) {
  const auto check = [&](const Snapshot& held, absl::string_view what) {
    const auto& expected = BytesToShow(held.version());
    bool whole = true;
    for (uint32_t r = 0; r < expected.size(); ++r) {
      const auto bytes = held.region(r);
      whole =
          whole && std::equal(bytes.begin(), bytes.end(), expected[r].begin(), expected[r].end());
    }
    if (whole) return;
    run_.Violate(absl::StrCat("whole: ", name(), ": what ", what, " of version ", held.version(),
                              " is not its bytes, ", when));
  };
  if (snapshot_) check(*snapshot_, "a reader holds");
  const absl::StatusOr<Snapshot> shown = worker_->TakeSnapshot("the check");
  if (!shown.ok()) return;
  check(*shown, "is shown");
  if (run_.steps() % kStepsOfSlowChecks != 0) return;
  const absl::StatusOr<uint64_t> verified = worker_->Verify();
  if (absl::IsDataLoss(verified.status())) {
    run_.Violate(absl::StrCat("whole: ", name(), ": ", verified.status().message(), ", ", when));
  }
}

// What is completed from what the worker shows comes out right.
void Process::CheckBases() {
  if (run_.damaged() || run_.steps() % kStepsOfSlowChecks != 0) return;
  if (worker_->report().counts.wrong_bases == 0) return;
  run_.Violate(absl::StrCat("bases: ", name(), ": a version that was completed came out wrong"));
}

void Process::AnswerVerify(uint64_t request) {
  const Comparison found = worker_->CompareShown({});
  if (absl::IsDataLoss(found.status)) {
    run_.Violate(absl::StrCat("whole: ", name(), ": ", found.status.message()));
  }
  proto::Verified verified;
  verified.set_request(request);
  verified.set_version(found.version);
  worker_->OnVerified(std::move(verified));
}

void Process::Pause(absl::Duration time) {
  if (!worker_ || left_ || paused_until_ != absl::InfiniteFuture() || !worker_->Pause().ok()) {
    return;
  }
  run_.Note(name(), " pauses");
  paused_until_ = run_.now() + time;
  HandleNotices();
}

// The engine may have put something else there.
void Process::Resume() {
  paused_until_ = absl::InfiniteFuture();
  const bool kept = run_.Below(2) == 0;
  for (auto& region : memory_) {
    if (!kept) std::fill(region.begin(), region.end(), kGarbage);
  }
  run_.Note(name(), " resumes, ", kept ? "as it was" : "without what it showed");
  worker_->Resume(kept);
}

void Process::HandleNotices() {
  while (!notices_.empty()) {
    const Notice notice = std::move(notices_.front());
    notices_.pop_front();
    HandleNotice(notice);
  }
}

void Process::HandleNotice(const Notice& notice) {
  if (notice.kind == Notice::Kind::kVerify) return AnswerVerify(notice.token);
  if (notice.token != 0 && due_.erase(notice.token) == 0) {
    run_.Violate(absl::StrCat("bounded: ", name(), ": a call ended twice"));
  }
  if (notice.token != 0 && notice.token == unfit_token_) {
    unfit_token_ = 0;
    if (notice.status.ok()) run_.Violate(absl::StrCat("bounded: ", name(), ": it cannot be done"));
    return;
  }
  switch (notice.kind) {
    case Notice::Kind::kJoined:
      run_.Note(name(), " has joined: ", notice.status.ToString());
      joined_ = notice.status.ok();
      here_since_ = run_.now();
      born_ = host_.decision_count();
      ended_ = !joined_;
      return;
    case Notice::Kind::kPublished:
      run_.Note(name(), ": publish ", notice.version, ": ", notice.status.ToString());
      if (notice.status.ok() && Holds(notice.version)) {
        holding_ = true;
        release_at_ = run_.now() + run_.UpTo(absl::Seconds(2));
      } else {
        ChangeTensors(absl::StrCat("publish ", notice.version));
      }
      if (job_.BoundsStaleness() &&
          (notice.status.ok() || absl::StrContains(notice.status.message(), "max_behind"))) {
        const uint64_t bound = notice.version - std::min(notice.version, MaxBehind(notice.version));
        host_.OnPublished(*this, notice.version, bound, notice.status.ok());
      }
      if (notice.version == publishing_) publishing_ = 0;
      done_ = std::max(done_, notice.version);
      failed_ = !notice.status.ok();
      return;
    case Notice::Kind::kReleased:
      holding_ = false;
      return ChangeTensors("the release");
    case Notice::Kind::kFetched:
      run_.Note(name(), ": fetch: version ", notice.version, ": ", notice.status.ToString());
      fetch_token_ = 0;
      fetch_at_ = run_.now() + run_.UpTo(absl::Milliseconds(300));
      if (notice.status.ok() && notice.version < wanted_) {
        run_.Violate(absl::StrCat("fetched: ", name(), " gets version ", notice.version,
                                  ", and version ", wanted_, " was asked for, or decided before"));
      }
      return;
    case Notice::Kind::kLeft:
      left_ = true;
      if (worker_) worker_->CloseLanes();
      run_.Note(name(), " has left");
      return;
    case Notice::Kind::kDisconnected:
      run_.Note(name(), " has lost the controller");
      outcomes_.clear();  // Some may be told again when it is back.
      here_since_ = absl::InfiniteFuture();
      return;
    case Notice::Kind::kReconnected:
      run_.Note(name(), " is back");
      here_since_ = run_.now();
      host_.OnBack(*this);
      return;
    case Notice::Kind::kEnded:
      run_.Note(name(), " is dismissed: ", notice.status.ToString());
      ended_ = true;
      // A restarted controller takes whichever of two processes of one rank comes first.
      if (!replaced_ && !host_.HasRival(*this)) {
        run_.Violate(
            absl::StrCat("recovers: ", name(), " is dismissed: ", notice.status.ToString()));
      }
      return;
    case Notice::Kind::kOutcome:
      run_.Note(name(), ": version ", notice.version, " in group ", notice.group, ": ",
                notice.committed ? "committed " : "not committed ", notice.status.message());
      if (!outcomes_.insert({notice.version, notice.group}).second &&
          notice.version != publishing_) {
        run_.Violate(absl::StrCat("truthful: ", name(), " is told again what became of version ",
                                  notice.version, " in group ", notice.group));
      }
      // Another process may have published the version again.
      if (!replaced_ && !absl::IsUnknown(notice.status)) {
        host_.OnOutcome(notice.version, notice.group, notice.committed, notice.status.ok());
      }
      return;
    case Notice::Kind::kGroupJoined:
    case Notice::Kind::kGroupLeft:
    case Notice::Kind::kWorkerLost:
    case Notice::Kind::kCaughtUp:
    case Notice::Kind::kDecided:
      // The version failed after its image was complete.
      if (job_.images && !notice.status.ok() && notice.version == done_) failed_ = true;
      return;
    case Notice::Kind::kReceived:
      return;
    default:
      return HandleUpdateNotice(notice);
  }
}

void Process::ChangeTensors(absl::string_view what) {
  if (!job_.images && fabric_->held_data_posts() > 0) {
    run_.Violate(absl::StrCat("quiet: ", name(), ": ", what,
                              " has ended, and writes of the version are on their way"));
  }
  std::fill(memory_[0].begin(), memory_[0].end(), kGarbage);
}

void Process::HandleUpdateNotice(const Notice& notice) {
  constexpr const char* kWords[] = {"PREPARE", "ARRIVED", "COMMIT", "ABORT"};
  const int index = static_cast<int>(notice.kind) - static_cast<int>(Notice::Kind::kPrepare);
  run_.Note(name(), ": ", kWords[index], " of version ", notice.version, " ",
            notice.status.message());
  if (notice.kind == Notice::Kind::kAbort || (worker_ && !job_.asked)) return;
  pending_answers_.push_back({notice, run_.now() + run_.UpTo(absl::Milliseconds(30))});
}

void Process::GiveAnswers() {
  for (size_t i = 0; i < pending_answers_.size();) {
    if (run_.now() < pending_answers_[i].at) {
      ++i;
      continue;
    }
    if (mood_ == Mood::kSilent) {
      mood_ = Mood::kAccept;
      // The controller counts a version as shown once its user has answered.
      if (pending_answers_[i].notice.kind == Notice::Kind::kCommit) {
        shown_at_ = absl::InfiniteFuture();
      }
      pending_answers_[i++].at = absl::InfiniteFuture();  // Once faults have ended.
      continue;
    }
    const Notice notice = pending_answers_[i].notice;
    pending_answers_.erase(pending_answers_.begin() + static_cast<std::ptrdiff_t>(i));
    if (trainer_) {
      GiveWord(notice.version);
      continue;
    }
    absl::Status answer;
    const bool is_shown = notice.kind == Notice::Kind::kCommit;
    if ((mood_ == Mood::kRefuse && (notice.kind == Notice::Kind::kPrepare || is_shown)) ||
        (mood_ == Mood::kVeto && notice.kind == Notice::Kind::kArrived)) {
      mood_ = Mood::kAccept;
      answer = absl::FailedPreconditionError("the user will not");
      // The answer about what a later version has taken the place of is not heard.
      if (is_shown && worker_->shown_version() == notice.version) {
        host_.OnUnusable(notice.version, id().group);
        shown_at_ = absl::InfiniteFuture();  // Its user does not use it.
      }
    }
    worker_->Answer(notice.kind, notice.update, answer, run_.now());
    HandleNotices();
  }
}

void Process::GiveWord(uint64_t version) {
  const uint64_t drawn = run_.Below(8);
  if (drawn == 0) return;
  run_.Note(name(), drawn == 1 ? " aborts" : " commits", " version ", version);
  if (drawn > 1) host_.OnWord(version);
  trainer_->Decide(version,
                   drawn == 1 ? absl::CancelledError("the user will not") : absl::OkStatus(),
                   run_.now());
  HandleNotices();
}

}  // namespace waybill::simulation
