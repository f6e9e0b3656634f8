// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/world.h"

#include <algorithm>
#include <exception>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waybill::simulation {
namespace {

absl::Time TimeOf(const Fault& fault) { return Run::kStart + absl::Milliseconds(fault.at_ms); }

bool StrikesARank(FaultKind kind) {
  return kind != FaultKind::kCrashController && kind != FaultKind::kFailRecord &&
         kind != FaultKind::kJumpClock && kind != FaultKind::kResize && kind != FaultKind::kLie;
}

// Returns true if the fault ends a term of which other ranks keep their lanes.
bool EndsATerm(FaultKind kind) {
  return kind == FaultKind::kCrashRank || kind == FaultKind::kReplaceRank ||
         kind == FaultKind::kBreakStream || kind == FaultKind::kCutLanes ||
         kind == FaultKind::kLeave || kind == FaultKind::kResize;
}

// Returns true if only one of the two processes can be a member.
bool Compete(const Process& a, const Process& b) {
  return a.place() == b.place() || a.id() == b.id();
}

}  // namespace

World::World(uint64_t seed, const std::vector<Fault>& faults, Story story)
    : run_(seed, story),
      faults_(faults),
      job_(DrawJob(seed, run_.random())),
      network_({.seed = static_cast<uint32_t>(run_.Below(1000)),
                .can_map = job_.can_map,
                .copies_posts = seed % 4 == 0,
                .most_posts_in_room = seed % 4 == 0 ? 1 : ~uint32_t{0}}),
      streams_(&run_),
      liars_(&run_),
      controller_(&run_, &job_, &streams_, &liars_),
      promises_(&run_, &controller_),
      training_(&run_, &job_, &promises_) {}

// --- ranks ---

void World::OnPublished(const Process& trainer, uint64_t version, uint64_t oldest, bool in_time) {
  // A trainer whose stream is held does not know yet which versions workers show now.
  constexpr absl::Duration kNews = absl::Seconds(7);
  if (!trainer.was_here_for(kNews)) return;
  bool all_new_enough = true;
  for (const auto& rank : ranks_) {
    if (rank != nullptr && !rank->fetches()) continue;
    if (rank == nullptr || rank->gone() || !rank->was_here_for(kNews)) {
      all_new_enough = false;
      continue;
    }
    const bool new_enough = rank->shown_version() >= oldest;
    all_new_enough = all_new_enough && new_enough && rank->has_shown_it_for(kNews);
    if (!in_time || new_enough) continue;
    run_.Violate(absl::StrCat("fresh: ", trainer.name(), " has published version ", version,
                              ", and ", rank->name(), " still shows version ",
                              rank->shown_version()));
  }
  if (!in_time && all_new_enough) {
    run_.Violate(absl::StrCat("fresh: ", trainer.name(), " waits for workers that show version ",
                              oldest, " or a later one"));
  }
}

bool World::HasRival(const Process& process) const {
  return std::any_of(zombies_.begin(), zombies_.end(),
                     [&](const auto& zombie) {
                       return zombie != nullptr && Compete(*zombie, process) && !zombie->gone();
                     }) ||
         std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
           return rank != nullptr && rank.get() != &process && rank->id() == process.id();
         });
}

// A restarted controller takes whichever of two processes of one rank comes first.
void World::OnBack(const Process& process) {
  for (const auto& rank : ranks_) {
    if (rank != nullptr && rank.get() != &process && Compete(*rank, process)) rank->SharePlace();
  }
}

std::unique_ptr<Process> World::MakeProcess(size_t index) {
  return std::make_unique<Process>(&run_, &job_, &network_, this, job_.Ranks()[index],
                                   run_.NextNumber());
}

void World::Destroy(std::unique_ptr<Process>& process) {
  std::erase_if(held_posts_, [&](const HeldPosts& held) { return held.process == process.get(); });
  streams_.Forget(process.get());
  promises_.OnWorkerGone(process->id().group);
  process.reset();
}

void World::StartRanks() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i] != nullptr && ranks_[i]->ended()) ReplaceRefused(i);
    if (ranks_[i] != nullptr || run_.now() < restart_at_[i]) continue;
    restart_at_[i] = absl::InfiniteFuture();
    ranks_[i] = MakeProcess(i);
    // Whoever comes back does not publish again what was given up.
    ranks_[i]->LeaveOut(training_.version());
    run_.Note(ranks_[i]->name(), " starts");
  }
}

// A process that could not join, or was removed with its group, is started again, unless one that
// may have its place is alive.
void World::ReplaceRefused(size_t index) {
  const RankId place = ranks_[index]->place();
  const auto may_have_it = [&](const Process& process) {
    const RankId other = process.place();
    const bool any = job_.any_rank && job_.HoldsTheSame(place) && other.role == place.role &&
                     other.group == place.group;
    return any || other == place;
  };
  const bool removed = ranks_[index]->joined() || ranks_[index]->has_lost_place();
  Destroy(ranks_[index]);
  restart_at_[index] = run_.now() + run_.UpTo(absl::Milliseconds(500));
  for (auto& zombie : zombies_) {
    if (removed || !may_have_it(*zombie) || zombie->gone() || zombie->leaving()) continue;
    ranks_[index] = std::move(zombie);
    ranks_[index]->RegainPlace();
    restart_at_[index] = absl::InfiniteFuture();
    break;
  }
  std::erase(zombies_, nullptr);
}

void World::StepRanks() {
  std::vector<Process*> processes;
  for (const auto& rank : ranks_) {
    if (rank != nullptr) processes.push_back(rank.get());
  }
  for (const auto& zombie : zombies_) processes.push_back(zombie.get());
  std::shuffle(processes.begin(), processes.end(), run_.random());
  for (Process* process : processes) {
    if (process->stopped() || run_.Below(4) == 0) continue;
    process->Step();
  }
}

void World::CheckRanks() {
  for (const auto& rank : ranks_) {
    if (rank != nullptr) rank->CheckCalls();
  }
  if (run_.steps() % 64 != 0) return;
  for (const auto& rank : ranks_) {
    if (rank != nullptr) rank->CheckGrowth();
  }
}

void World::BuryZombies() {
  for (auto& zombie : zombies_) {
    if (zombie->gone() && zombie->stream() == 0) Destroy(zombie);
  }
  std::erase(zombies_, nullptr);
}

// --- faults ---

void World::BeginFaults() {
  while (next_fault_ < faults_.size() && !calm_ && run_.now() >= TimeOf(faults_[next_fault_])) {
    const Fault& fault = faults_[next_fault_++];
    fault.trigger == Trigger::kTime ? Strike(fault) : armed_.push_back(fault);
  }
  for (const Fault& fault : std::exchange(triggered_, {})) Strike(fault);
  if (!calm_ && run_.now() >= Run::kStart + kFaultyTime) EndOfFaults();
}

void World::PullTriggers(const Delivery& delivery) {
  for (const Fault& fault : armed_) {
    if (delivery.trigger == Trigger::kStart && fault.trigger == Trigger::kArrived &&
        EndsATerm(fault.kind)) {
      DistractWorkers(ranks_[fault.who % ranks_.size()].get());
    }
  }
  const auto waits = [&](const Fault& fault) {
    return fault.trigger == delivery.trigger &&
           ranks_[fault.who % ranks_.size()].get() == delivery.process;
  };
  const auto found = std::find_if(armed_.begin(), armed_.end(), waits);
  if (found == armed_.end()) return;
  triggered_.push_back(*found);
  armed_.erase(found);
}

void World::Strike(const Fault& fault) {
  const uint32_t index = fault.who % static_cast<uint32_t>(ranks_.size());
  std::unique_ptr<Process>& rank = ranks_[index];
  const absl::Duration duration = absl::Milliseconds(fault.duration_ms);
  if (rank == nullptr && StrikesARank(fault.kind)) return;
  run_.CountFault(fault.kind);
  run_.SetActive();
  run_.Note("FAULT ", Name(fault.kind), rank != nullptr ? " " + rank->name() : "", " for ",
            absl::FormatDuration(duration));
  if (EndsATerm(fault.kind) && fault.other % 2 == 0) DistractWorkers(rank.get());
  const auto peer_name = [&] {
    const uint32_t other = fault.other % job_.PeersOf(rank->id());
    // An engine knows its peers by their ranks in the group.
    if (!rank->is_trainer() && other >= job_.trainers) {
      return ToString(RankId{Role::kWorker, other - job_.trainers});
    }
    const RankId id = job_.Ranks()[rank->is_trainer() ? job_.trainers + other : other];
    return ToString(RankId{id.role, id.rank});
  };
  Process* const trainer = ranks_[fault.who % job_.trainers].get();
  Process* const worker = ranks_[job_.trainers + fault.who % (ranks_.size() - job_.trainers)].get();
  if (trainer == nullptr || worker == nullptr) {
    if (fault.kind >= FaultKind::kLoseStream) return;
  }
  switch (fault.kind) {
    case FaultKind::kCrashRank:
      Crash(rank);
      restart_at_[index] = run_.now() + duration;
      return;
    case FaultKind::kStopRank:
      return rank->Stop(duration);
    case FaultKind::kReplaceRank:
      if (HasRival(*rank)) return;  // Two processes at a time.
      rank->Stop(duration);
      rank->LosePlace();
      zombies_.push_back(std::move(rank));
      restart_at_[index] = run_.now() + run_.UpTo(absl::Milliseconds(500));
      return;
    case FaultKind::kBreakStream:
      return streams_.Break(rank->stream());
    case FaultKind::kDelayStream:
      return streams_.Hold(rank->stream(), run_.now() + duration);
    case FaultKind::kCrashController:
      return controller_.Crash(duration);
    case FaultKind::kFailRecord:
      return controller_.FailARecord();
    case FaultKind::kCutLanes:
      return rank->fabric().KillLanes(peer_name(), absl::UnavailableError("cut"));
    case FaultKind::kHoldPosts:
      rank->fabric().HoldPosts(peer_name());
      held_posts_.push_back({run_.now() + duration, rank.get(), peer_name()});
      return;
    case FaultKind::kResize:
      return Resize(fault);
    case FaultKind::kLie:
      job_.most_ranks = std::max(job_.most_ranks, ranks_.size() + Liars::kMost);
      return liars_.Begin(run_.now() + duration);
    case FaultKind::kMute:
      return rank->Mute();
    case FaultKind::kRemove:
      return RemoveGroup(rank->id().group);
    case FaultKind::kJumpClock:
      if (fault.other % 2 == 0) return run_.Advance(std::max(-duration, Run::kStart - run_.now()));
      run_.Advance(duration);
      // The controller keeps some things for ten minutes. Of two processes, one would not have
      // answered.
      if (fault.other % 8 == 1 && zombies_.empty()) {
        run_.Advance(absl::Minutes(11));
        latest_ += absl::Minutes(11);
      }
      // Nobody could be told meanwhile.
      for (const auto& process : ranks_) {
        if (process != nullptr) process->ExcuseUntil(run_.now());
      }
      return;
    case FaultKind::kRefuse:
      return rank->SetMood(Process::Mood::kRefuse);
    case FaultKind::kVeto:
      return rank->SetMood(Process::Mood::kVeto);
    case FaultKind::kSilentUser:
      return rank->SetMood(Process::Mood::kSilent);
    case FaultKind::kReadLong:
      return rank->TakeSnapshot(duration, absl::Milliseconds(fault.other % 5 == 1 ? 100 : 0));
    case FaultKind::kCancelPublish:
      return rank->CancelPublish();
    case FaultKind::kCorrupt:
      run_.SetDamaged();
      return rank->fabric().CorruptWrite(peer_name(), 1 + fault.other % 3);
    case FaultKind::kLoseStream:
      return streams_.Lose(rank->stream(), run_.now() + duration);
    case FaultKind::kLookAway:
      return rank->LookAway(duration);
    case FaultKind::kPause:
      return worker->Pause(duration);
    case FaultKind::kDisagree: {
      using How = Process::Disagreement;
      constexpr How kHow[] = {How::kHoldsCommit, How::kNoDigests, How::kNextVersion,
                              How::kNotANumber};
      const How how = kHow[fault.other % 4];
      // Another replica may send what should be a number, and damage is not found without digests.
      const bool sends = job_.quantised && job_.replicas == 1;
      const bool damaged = std::any_of(faults_.begin(), faults_.end(), [](const Fault& other) {
        return other.kind == FaultKind::kCorrupt;
      });
      const bool fits = how == How::kNotANumber ? sends : how != How::kNoDigests || !damaged;
      return trainer->Disagree(fits ? how : How::kNextVersion);
    }
    case FaultKind::kDiffer:
      run_.SetDamaged();
      if (job_.replicas > 1) trainer->Disagree(Process::Disagreement::kOtherBytes);
      return;
    case FaultKind::kNics: {
      std::vector<FabricNic> nics(fault.other % 3);
      for (size_t i = 0; i < nics.size(); ++i) nics[i].name = absl::StrCat("nic", i);
      return rank->fabric().SetNics(std::move(nics));
    }
    case FaultKind::kMisdirect:
      return rank->Misdirect(static_cast<Process::Misdirected>(1 + fault.other % 3));
    case FaultKind::kFillLane:
      return rank->fabric().FailCall(FabricCall::kPost, peer_name(), 1 + fault.other % 3,
                                     absl::ResourceExhaustedError("the lane is full"));
    case FaultKind::kRepeat:
      return rank->fabric().DuplicateImmediate(peer_name(), 1 + fault.other % 3);
    case FaultKind::kVerify:
      return controller_.AskWhatIsShown();
    case FaultKind::kAway:
      return SendAway(worker->place().group, duration);
    case FaultKind::kLeave:
      if (!rank->joined()) return;
      rank->LosePlace();
      promises_.OnWorkerGone(rank->id().group);
      rank->Leave();
      zombies_.push_back(std::move(rank));
      restart_at_[index] = run_.now() + duration;
      return;
  }
}

// What has come by lanes that are kept is then polled in the next term.
void World::DistractWorkers(const Process* but) {
  for (const auto& process : ranks_) {
    if (process == nullptr || process.get() == but || process->is_trainer()) continue;
    process->LookAway(absl::Milliseconds(300) + run_.UpTo(absl::Milliseconds(1200)));
  }
}

void World::Crash(std::unique_ptr<Process>& rank) {
  streams_.Break(rank->stream());
  network_.Kill(rank->name());
  Destroy(rank);
}

// The group's workers are told so, and others come in their place.
void World::RemoveGroup(const std::string& group) {
  if (group.empty() || controller_.coordinator() == nullptr) return;
  job_.required = false;
  for (const auto& rank : ranks_) {
    if (rank != nullptr && rank->id().group == group) rank->LosePlace();
  }
  promises_.OnWorkerGone(group);
  (void)controller_.coordinator()->RemoveGroup(group, run_.now());
  if (controller_.coordinator()->RemoveGroup("no such group", run_.now()).ok()) {
    run_.Violate("alive: a group is removed that never was");
  }
}

// The clock jumps meanwhile. Nobody publishes without a group that is required.
void World::SendAway(const std::string& group, absl::Duration duration) {
  const bool come_back = !job_.required && run_.Below(2) == 0;
  if (!come_back) RemoveGroup(group);
  const absl::Duration away = absl::Seconds(2) + duration;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i] == nullptr || ranks_[i]->place().group != group) continue;
    if (come_back) {
      streams_.Break(ranks_[i]->stream());
      ranks_[i]->Stop(away);
      ranks_[i]->SharePlace();  // Nobody knows any more what it voted for.
      continue;
    }
    Crash(ranks_[i]);
    restart_at_[i] = run_.now() + away;
  }
  for (auto& zombie : zombies_) {
    if (zombie->place().group == group) Crash(zombie);
  }
  std::erase(zombies_, nullptr);
  // The first jump begins the last minute in which the controller remembers the group.
  for (const int64_t ms : {1000, 500}) {
    StrikeNext({.kind = FaultKind::kJumpClock, .other = 1}, absl::Milliseconds(ms) + duration);
  }
}

void World::StrikeNext(Fault fault, absl::Duration after) {
  fault.at_ms = absl::ToInt64Milliseconds(run_.now() - Run::kStart + after);
  faults_.insert(faults_.begin() + static_cast<std::ptrdiff_t>(next_fault_), fault);
}

// Another training takes the place of this one. Its last trainer may go again at once.
void World::Resize(const Fault& fault) {
  const bool leave = fault.other % 2 == 0;
  for (auto& zombie : zombies_) {
    if (zombie->is_trainer()) Crash(zombie);
  }
  std::erase(zombies_, nullptr);
  for (uint32_t t = 0; t < job_.trainers; ++t) {
    if (ranks_[t] == nullptr) continue;
    if (!leave || !ranks_[t]->joined()) {
      Crash(ranks_[t]);
      continue;
    }
    ranks_[t]->LosePlace();
    ranks_[t]->Leave();
    zombies_.push_back(std::move(ranks_[t]));
  }
  ranks_.erase(ranks_.begin(), ranks_.begin() + job_.trainers);
  restart_at_.erase(restart_at_.begin(), restart_at_.begin() + job_.trainers);
  job_.trainers = 1 + fault.who % 4;
  job_.replicas = job_.trainers % 2 == 0 && run_.Below(2) == 0 ? 2 : 1;
  std::vector<std::unique_ptr<Process>> next(job_.trainers);
  for (auto& rank : ranks_) next.push_back(std::move(rank));
  ranks_ = std::move(next);
  restart_at_.insert(restart_at_.begin(), job_.trainers, run_.now());
  job_.most_ranks = std::max(job_.most_ranks, ranks_.size());
  run_.Note(job_.trainers, " trainers (", job_.replicas, " replicas) come");
  if (fault.other % 4 < 2) return;
  StrikeNext({.kind = FaultKind::kCrashRank, .who = job_.trainers - 1, .duration_ms = 100},
             absl::Milliseconds(fault.duration_ms / 4));
}

void World::LetPostsGo() {
  std::vector<HeldPosts> released;
  std::erase_if(held_posts_, [&](const HeldPosts& held) {
    if (run_.now() < held.until) return false;
    released.push_back(held);
    return true;
  });
  for (const HeldPosts& held : released) held.process->fabric().LetPostsGo(held.peer);
}

void World::EndOfFaults() {
  calm_ = true;
  armed_.clear();
  triggered_.clear();
  run_.Note("faults have ended");
  for (HeldPosts& held : held_posts_) held.until = run_.now();
  LetPostsGo();
  liars_.End(controller_.coordinator());
  controller_.EndOfFaults();
  training_.EndOfFaults();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i] == nullptr) {
      restart_at_[i] = std::min(restart_at_[i], run_.now());
      continue;
    }
    ranks_[i]->GoOn();
    ranks_[i]->Calm();
    streams_.Hold(ranks_[i]->stream(), run_.now());
  }
  for (const auto& zombie : zombies_) {
    zombie->GoOn();
    zombie->Calm();
  }
}

// --- time ---

void World::Step() {
  run_.BeginStep();
  BeginFaults();
  controller_.RestartIfDue();
  StartRanks();
  LetPostsGo();
  liars_.Step(controller_.coordinator());
  Deliver();
  StepRanks();
  controller_.RunJobs();
  controller_.OnTime();
  training_.Step(std::span(ranks_).first(job_.trainers));
  CheckRanks();
  BuryZombies();
  run_.Advance(absl::Microseconds(static_cast<int64_t>(20 + run_.Below(300))));
}

void World::Deliver() {
  for (const Delivery& delivery : streams_.DeliverSome(controller_.coordinator())) {
    PullTriggers(delivery);
  }
}

absl::Time World::NextEvent() const {
  absl::Time next =
      std::min({controller_.next_event(), training_.next_event(), streams_.next_event()});
  if (next_fault_ < faults_.size()) next = std::min(next, TimeOf(faults_[next_fault_]));
  if (!calm_) next = std::min(next, Run::kStart + kFaultyTime);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    next = std::min(next, ranks_[i] == nullptr ? restart_at_[i] : ranks_[i]->next_event());
  }
  for (const auto& zombie : zombies_) next = std::min(next, zombie->next_event());
  for (const HeldPosts& held : held_posts_) next = std::min(next, held.until);
  return next;
}

Result World::Live() {
  try {
    LiveOn();
  } catch (const std::exception& thrown) {
    run_.Violate(absl::StrCat("alive: an exception ends a process: ", thrown.what()));
  }
  return run_.TakeResult();
}

void World::LiveOn() {
  controller_.Start();
  for (size_t i = 0; i < job_.Ranks().size(); ++i) ranks_.push_back(MakeProcess(i));
  restart_at_.assign(ranks_.size(), absl::InfiniteFuture());
  run_.Note(job_.trainers, " trainers (", job_.replicas, " replicas), ", job_.groups.size(),
            " groups of ", ranks_.size() - job_.trainers, " workers, ", waybill::Name(job_.mode),
            job_.can_map ? ", mapped" : ", posted", job_.asked ? ", users answer" : "",
            job_.required ? ", every group required" : "");
  int idle = 0;
  while (!run_.violated() && !training_.recovered()) {
    Step();
    idle = run_.active() ? 0 : idle + 1;
    if (idle > 6) {
      const absl::Duration gap = NextEvent() - run_.now();
      if (gap > absl::ZeroDuration()) run_.Advance(std::min(gap, absl::Milliseconds(500)));
      idle = 0;
    }
    if (run_.now() > latest_) run_.Violate("recovers: the job stands still");
  }
  // The last commit reaches everybody in a second, also over a stream that lags.
  for (int i = 0; i < 200 && !run_.violated(); ++i) {
    Deliver();
    StepRanks();
    controller_.RunJobs();
    run_.Advance(absl::Milliseconds(5));
  }
  for (size_t i = job_.trainers; i < ranks_.size() && !run_.violated(); ++i) {
    if (ranks_[i] == nullptr) continue;
    std::vector<const Process*> processes = {ranks_[i].get()};
    for (const auto& zombie : zombies_) {
      if (Compete(*zombie, *ranks_[i])) processes.push_back(zombie.get());
    }
    promises_.CheckAtEnd(processes);
  }
}

}  // namespace waybill::simulation
