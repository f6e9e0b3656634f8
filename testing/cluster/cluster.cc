// SPDX-License-Identifier: Apache-2.0

#include "testing/cluster/cluster.h"

#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/plan/planner.h"

namespace waybill {
namespace {

class HostMemory final : public ClusterMemory {
 public:
  MemorySpan Allocate(size_t size_bytes) override {
    std::vector<std::byte>& memory = all_.emplace_back(size_bytes);
    return {MemoryKind::kHost, memory.data(), size_bytes};
  }
  void Write(const MemorySpan& to, const std::byte* from) override {
    std::memcpy(to.data, from, to.size_bytes);
  }
  void Read(const MemorySpan& from, std::byte* to) override {
    std::memcpy(to, from.data, from.size_bytes);
  }

 private:
  std::deque<std::vector<std::byte>> all_;
};

}  // namespace

std::shared_ptr<ClusterMemory> MakeHostMemory() { return std::make_shared<HostMemory>(); }

Cluster::Cluster(const ClusterOptions& options, const MakeFabric& make_fabric)
    : options_(options),
      model_(options.model != nullptr
                 ? options.model
                 : MakePlainModel({options.trainers, options.workers, options.trainer_dtype})),
      trainers_(options.trainers),
      workers_(options.workers) {
  for (uint32_t t = 0; t < options.trainers; ++t) {
    TrainerRank& rank = trainers_[t];
    rank.manifest = model_->Trainer(t);
    rank.fabric_events.reserve(256);
    rank.memory = options.trainer_memory->Allocate(rank.manifest.region_bytes(0));
    rank.fabric = make_fabric(absl::StrCat("trainer ", t));
    SenderEngineOptions engine = options.trainer;
    if (options.direct) engine.direct_run_bytes = 1;
    rank.staging = *StagingArea::Create(rank.fabric.get(), engine);
    if (options.direct) rank.staging->AddSource(rank.memory, "weights");
    rank.engine =
        SenderEngine::Create(rank.fabric.get(), rank.staging.get(),
                             [&rank](const SenderEvent& event) { rank.events.push_back(event); });
  }
  for (uint32_t w = 0; w < options.workers; ++w) {
    WorkerRank& rank = workers_[w];
    rank.manifest = model_->Worker(w);
    rank.fabric_events.reserve(256);
    rank.fabric = make_fabric(absl::StrCat("worker ", w));
    std::vector<MemorySpan> user_regions;
    for (uint32_t r = 0; options.user_memory && r < rank.manifest.region_count(); ++r) {
      const std::vector<std::byte> filler(rank.manifest.region_bytes(r), std::byte{0xEE});
      user_regions.push_back(options.worker_memory->Allocate(filler.size()));
      options.worker_memory->Write(user_regions.back(), filler.data());
    }
    rank.engine = *ReceiverEngine::Create(
        rank.fabric.get(), rank.manifest, user_regions,
        {.mode = options.mode,
         .arena_gpu = options.arena_gpu,
         .verify_threads = options.verify_threads,
         .chunk_bytes = options.trainer.chunk_bytes},
        [&rank](const ReceiverEvent& event) { rank.events.push_back(event); });
  }
}

Cluster::~Cluster() {
  for (TrainerRank& rank : trainers_) rank.engine.reset();
}

absl::Status Cluster::FirstFailure() const {
  for (const TrainerRank& rank : trainers_) {
    for (const SenderEvent& event : rank.events) {
      if (!event.status.ok()) return event.status;
    }
  }
  for (const WorkerRank& rank : workers_) {
    for (const ReceiverEvent& event : rank.events) {
      if (!event.status.ok()) return event.status;
    }
  }
  return absl::OkStatus();
}

template <typename Rank>
void Cluster::HandOn(Rank& rank) {
  rank.fabric_events.clear();
  rank.fabric->Poll(rank.fabric_events);
  for (const FabricEvent& event : rank.fabric_events) rank.engine->Handle(event);
}

void Cluster::StepTrainers() {
  for (TrainerRank& rank : trainers_) {
    if (rank.engine == nullptr) continue;
    HandOn(rank);
    rank.engine->Step();
  }
}

void Cluster::Step() {
  StepTrainers();
  for (WorkerRank& rank : workers_) {
    HandOn(rank);
    rank.engine->Step(now_);
  }
}

bool Cluster::StepUntil(const std::function<bool()>& done) {
  // Threads take what they take, and steps here none of it.
  const bool threads = options_.trainer.stage_threads > 0 || options_.verify_threads > 0;
  const absl::Time deadline = SteadyNow() + (threads ? absl::Seconds(30) : absl::ZeroDuration());
  for (uint32_t i = 0; i < options_.most_steps || SteadyNow() < deadline; ++i) {
    if (done()) return true;
    if (!FirstFailure().ok()) return false;
    Step();
  }
  return false;
}

TermLanes Cluster::LanesTo(Role role, size_t peers,
                           const std::function<RankPair(uint32_t peer)>& pair_with,
                           const Keeps& keeps) const {
  TermLanes lanes{.tag = term_};
  for (uint32_t i = 0; i < peers; ++i) {
    const auto [sender, receiver] = pair_with(i);
    lanes.peers.push_back({.peer = i,
                           .id = {role, i},
                           .lanes = std::vector<LanePath>(options_.lanes),
                           .kept = keeps(sender, receiver),
                           .first_ledger_entry = plan_.first_ledger_entry(sender, receiver)});
  }
  return lanes;
}

absl::Status Cluster::Connect(const Keeps& keeps) {
  ++term_;
  std::vector<const Manifest*> trainers, workers;
  for (const TrainerRank& rank : trainers_) trainers.push_back(&rank.manifest);
  for (const WorkerRank& rank : workers_) workers.push_back(&rank.manifest);
  WAYBILL_ASSIGN_OR_RETURN(plan_, MakePlan(trainers, workers, {.smallest_piece_bytes = 512}));
  tables_ = MakeTables(plan_);
  std::vector<Exchange> exchanges = tables_.exchanges;
  if (options_.spoil_exchanges) options_.spoil_exchanges(exchanges);
  std::vector<std::vector<ReceiverAddress>> worker_addresses(trainers_.size());
  std::vector<std::vector<SenderAddress>> trainer_addresses(workers_.size());
  std::vector<std::vector<CoOwnerAddress>> co_owners(trainers_.size());
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    TrainerRank& rank = trainers_[t];
    rank.events.clear();
    WAYBILL_ASSIGN_OR_RETURN(
        const auto offers,
        rank.engine->SetPlan({tables_.senders[t], exchanges[t]}, {rank.memory},
                             LanesTo(
                                 Role::kWorker, workers_.size(),
                                 [&](uint32_t w) { return RankPair{t, w}; }, keeps)));
    for (const LaneOffer& offer : offers.lanes) {
      auto& peers = trainer_addresses[offer.peer];
      if (peers.empty() || peers.back().sender != t) peers.push_back({t, {}});
      peers.back().lane_addresses.push_back(offer.address);
    }
    for (const LaneOffer& offer : offers.co_owners) {
      co_owners[offer.peer].push_back({t, offer.address, offers.mailbox});
    }
  }
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    workers_[w].events.clear();
    WAYBILL_ASSIGN_OR_RETURN(
        const auto offers,
        workers_[w].engine->SetPlan(tables_.receivers[w], plan_.hash(),
                                    LanesTo(
                                        Role::kTrainer, trainers_.size(),
                                        [&](uint32_t t) { return RankPair{t, w}; }, keeps)));
    WAYBILL_ASSIGN_OR_RETURN(const auto buffers, workers_[w].engine->Describe());
    for (const LaneOffer& offer : offers) {
      auto& peers = worker_addresses[offer.peer];
      if (peers.empty() || peers.back().receiver != w) peers.push_back({w, {}, buffers});
      peers.back().lane_addresses.push_back(offer.address);
    }
  }
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    WAYBILL_RETURN_IF_ERROR(trainers_[t].engine->Connect(worker_addresses[t], co_owners[t]));
  }
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    WAYBILL_RETURN_IF_ERROR(workers_[w].engine->Connect(trainer_addresses[w]));
  }
  const bool connected = StepUntil([&] {
    for (const TrainerRank& rank : trainers_) {
      if (rank.events.empty()) return false;
    }
    for (const WorkerRank& rank : workers_) {
      if (rank.events.empty()) return false;
    }
    return true;
  });
  WAYBILL_RETURN_IF_ERROR(FirstFailure());
  return connected ? absl::OkStatus() : absl::DeadlineExceededError("the lanes do not connect");
}

absl::Status Cluster::Prepare(uint64_t version) {
  update_ = {.version = version, .sequence = ++sequence_, .epoch = 1, .plan_hash = plan_.hash()};
  for (TrainerRank& rank : trainers_) rank.events.clear();
  for (WorkerRank& rank : workers_) {
    rank.events.clear();
    rank.engine->Prepare(update_, options_.digests, now_);
  }
  const bool ready = StepUntil([&] {
    for (const WorkerRank& rank : workers_) {
      if (rank.events.empty()) return false;
    }
    return true;
  });
  WAYBILL_RETURN_IF_ERROR(FirstFailure());
  return ready ? absl::OkStatus() : absl::DeadlineExceededError("a worker is not ready");
}

absl::Status Cluster::Abandon(uint64_t version) {
  WAYBILL_RETURN_IF_ERROR(Prepare(version));
  for (WorkerRank& rank : workers_) rank.engine->Abort(update_, /*begun=*/true);
  return absl::OkStatus();
}

std::vector<StartTarget> Cluster::TargetsOf(uint32_t t) const {
  const RouteTable& routes = tables_.senders[t];
  std::set<uint32_t> targeted;
  for (uint32_t r = 0; r < routes.size(); ++r) targeted.insert(routes.receiver(r));
  std::vector<StartTarget> targets;
  for (const uint32_t w : targeted) {
    const ReceiverEvent& ready = workers_[w].events.front();
    targets.push_back({w, ready.buffer_index, ready.address.generation});
  }
  return targets;
}

absl::Status Cluster::Start(uint32_t t) {
  const std::vector<StartTarget> targets = TargetsOf(t);
  for (const StartTarget& target : targets) {
    WAYBILL_RETURN_IF_ERROR(trainers_[t].engine->SetBufferAddress(
        target.receiver, target.buffer_index, workers_[target.receiver].events.front().address));
  }
  return trainers_[t].engine->Start(update_, options_.digests, targets);
}

absl::Status Cluster::StartAndArrive() {
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    if (trainers_[t].engine != nullptr) WAYBILL_RETURN_IF_ERROR(Start(t));
  }
  const bool arrived = StepUntil([&] {
    for (const TrainerRank& rank : trainers_) {
      if (rank.events.empty()) return false;
    }
    for (const WorkerRank& rank : workers_) {
      if (rank.events.size() < 2) return false;
    }
    return true;
  });
  WAYBILL_RETURN_IF_ERROR(FirstFailure());
  return arrived ? absl::OkStatus() : absl::DeadlineExceededError("not everything arrives");
}

absl::Status Cluster::Commit() {
  for (WorkerRank& rank : workers_) rank.engine->Commit(update_);
  const bool shown = StepUntil([&] {
    for (const WorkerRank& rank : workers_) {
      if (rank.events.back().kind != ReceiverEvent::Kind::kShown) return false;
    }
    return true;
  });
  WAYBILL_RETURN_IF_ERROR(FirstFailure());
  return shown ? absl::OkStatus() : absl::DeadlineExceededError("a worker does not show it");
}

void Cluster::Abort(bool begun) {
  for (TrainerRank& rank : trainers_) {
    rank.events.clear();
    if (rank.engine != nullptr) rank.engine->Abort(update_.sequence);
  }
  for (WorkerRank& rank : workers_) {
    rank.events.clear();
    rank.engine->Abort(update_, begun);
  }
}

bool Cluster::UntilStopped() {
  return StepUntil([&] {
    for (const TrainerRank& rank : trainers_) {
      if (rank.engine == nullptr) continue;
      if (rank.events.empty() || rank.events.back().kind != SenderEvent::Kind::kStopped) {
        return false;
      }
    }
    return true;
  });
}

absl::Status Cluster::Publish(uint64_t version) {
  absl::Status status = Prepare(version);
  bool begun = false;
  if (status.ok()) {
    begun = true;
    status = StartAndArrive();
  }
  if (status.ok()) return Commit();
  Abort(begun);
  (void)UntilStopped();
  return status;
}

void Cluster::FillTrainers(uint64_t version) {
  for (const TrainerRank& rank : trainers_) {
    std::vector<std::byte> bytes(rank.memory.size_bytes);
    model_->Fill(version, rank.manifest, bytes.data());
    options_.trainer_memory->Write(rank.memory, bytes.data());
  }
}

bool Cluster::Shows(uint32_t w, uint64_t version) {
  const auto snapshot = workers_[w].engine->TakeSnapshot("test");
  if (!snapshot.ok() || snapshot->version() != version) return false;
  const Manifest& manifest = workers_[w].manifest;
  std::vector<std::vector<std::byte>> expected;
  for (uint32_t r = 0; r < manifest.region_count(); ++r) {
    expected.emplace_back(manifest.region_bytes(r), std::byte{0});
  }
  model_->Expect(version, manifest, expected);
  for (uint32_t r = 0; r < manifest.region_count(); ++r) {
    const auto region = snapshot->region(r);
    const bool elsewhere = options_.user_memory || options_.arena_gpu;
    std::vector<std::byte> shown(region.begin(), elsewhere ? region.begin() : region.end());
    if (elsewhere) {
      shown.resize(region.size());
      options_.worker_memory->Read(
          {.data = const_cast<std::byte*>(region.data()), .size_bytes = region.size()},
          shown.data());
    }
    if (shown != expected[r]) return false;
  }
  return true;
}

void Cluster::KillTrainer(uint32_t t) {
  trainers_[t].engine.reset();
  trainers_[t].staging.reset();
  trainers_[t].fabric.reset();
}

}  // namespace waybill
