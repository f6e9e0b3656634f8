#include "testing/cluster/cluster.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/planner.h"

namespace waybill {
namespace {

constexpr int64_t kRows = 96;
constexpr int64_t kColumns = 40;
constexpr const char* kNames[] = {"q", "k", "down", "turned"};

// The value of element `number` of tensor `t` in a version: BF16's bits, and the upper half of
// F32's.
uint16_t ValueOf(uint32_t t, int64_t number, uint64_t version) {
  const uint64_t mixed =
      (version * 0x9E3779B97F4A7C15u) ^
      ((uint64_t{t} << 32 | static_cast<uint64_t>(number)) * 0xD6E8FEB86659FD93u);
  return static_cast<uint16_t>((mixed >> 40) & 0x3FFF);  // Finite, positive.
}

// The rows of part `i` of `n`, the last one shorter.
std::pair<int64_t, int64_t> Part(int64_t size, uint32_t i, uint32_t n) {
  const int64_t each = (size + n - 1) / n;
  return {std::min(size, each * i), std::min(size, each * (i + 1))};
}

Manifest TrainerManifest(uint32_t t, const ClusterOptions& options) {
  const Format format{options.trainer_dtype};
  const auto [begin, end] = Part(kRows, t, options.trainers);
  Manifest m;
  const uint64_t each = static_cast<uint64_t>((end - begin) * kColumns) * ElementBytes(format);
  m.AddRegion("memory", 4 * each);
  for (uint32_t i = 0; i < 4; ++i) {
    m.AddTensor(kNames[i], {kRows, kColumns}, format.dtype);
    m.AddShard(i, format, Box({begin, 0}, {end, kColumns}), {0, i * each, {kColumns, 1}});
  }
  return m;
}

// q and k by rows, fused in one region and padded by a row; down by columns; turned whole, stored
// columns first.
Manifest WorkerManifest(uint32_t w, const ClusterOptions& options) {
  const Format format{Dtype::kBf16};
  const auto [row, row_end] = Part(kRows, w, options.workers);
  const auto [column, column_end] = Part(kColumns, w, options.workers);
  const int64_t rows = row_end - row, columns = column_end - column;
  Manifest m;
  for (const char* name : kNames) m.AddTensor(name, {kRows, kColumns}, Dtype::kBf16);
  m.AddRegion("fused", static_cast<uint64_t>((2 * rows + 1) * kColumns * 2));
  m.AddShard(0, format, Box({row, 0}, {row_end, kColumns}), {0, 0, {kColumns, 1}});
  m.AddShard(1, format, Box({row, 0}, {row_end, kColumns}),
             {0, static_cast<uint64_t>(rows * kColumns * 2), {kColumns, 1}});
  m.AddPadding(2, {kColumns}, {0, static_cast<uint64_t>(2 * rows * kColumns * 2), {1}});
  m.AddRegion("down", static_cast<uint64_t>(kRows * columns * 2));
  m.AddShard(2, format, Box({0, column}, {kRows, column_end}), {1, 0, {columns, 1}});
  m.AddRegion("turned", static_cast<uint64_t>(kRows * kColumns * 2));
  m.AddShard(3, format, Box({0, 0}, {kRows, kColumns}), {2, 0, {1, kRows}});
  return m;
}

// Calls visit(tensor, number in the tensor, region, byte offset) for each element of each shard.
template <typename Visit>
void ForEachElement(const Manifest& manifest, Visit visit) {
  for (uint32_t s = 0; s < manifest.shard_count(); ++s) {
    const ShardView shard = manifest.shard(s);
    for (int64_t r = shard.box.begin(0); r < shard.box.end(0); ++r) {
      for (int64_t c = shard.box.begin(1); c < shard.box.end(1); ++c) {
        const int64_t place = (r - shard.box.begin(0)) * shard.place.strides[0] +
                              (c - shard.box.begin(1)) * shard.place.strides[1];
        visit(shard.tensor_index, r * kColumns + c, shard.place.region_index,
              shard.place.offset_bytes + static_cast<uint64_t>(place) * ElementBytes(shard.format));
      }
    }
  }
}

}  // namespace

Cluster::Cluster(const ClusterOptions& options, const MakeFabric& make_fabric)
    : options_(options), trainers_(options.trainers), workers_(options.workers) {
  for (uint32_t t = 0; t < options.trainers; ++t) {
    TrainerRank& rank = trainers_[t];
    rank.manifest = TrainerManifest(t, options);
    rank.memory.resize(rank.manifest.region_bytes(0));
    rank.fabric = make_fabric(absl::StrCat("trainer ", t));
    rank.engine = *TrainerEngine::Create(
        rank.fabric.get(), options.trainer,
        [&rank](const TrainerEvent& event) { rank.events.push_back(event); });
  }
  for (uint32_t w = 0; w < options.workers; ++w) {
    WorkerRank& rank = workers_[w];
    rank.manifest = WorkerManifest(w, options);
    rank.fabric = make_fabric(absl::StrCat("worker ", w));
    std::vector<MemorySpan> user_regions;
    for (uint32_t r = 0; options.user_memory && r < rank.manifest.region_count(); ++r) {
      auto& memory = rank.user_memory.emplace_back(rank.manifest.region_bytes(r), std::byte{0xEE});
      user_regions.push_back({MemoryKind::kHost, memory.data(), memory.size()});
    }
    rank.engine =
        *WorkerEngine::Create(rank.fabric.get(), rank.manifest, user_regions,
                              {.mode = options.mode, .verify_threads = options.verify_threads},
                              [&rank](const WorkerEvent& event) { rank.events.push_back(event); });
  }
}

Cluster::~Cluster() {
  for (TrainerRank& rank : trainers_) rank.engine.reset();
}

absl::Status Cluster::FirstFailure() const {
  for (const TrainerRank& rank : trainers_) {
    for (const TrainerEvent& event : rank.events) {
      if (!event.status.ok()) return event.status;
    }
  }
  for (const WorkerRank& rank : workers_) {
    for (const WorkerEvent& event : rank.events) {
      if (!event.status.ok()) return event.status;
    }
  }
  return absl::OkStatus();
}

void Cluster::Step() {
  for (TrainerRank& rank : trainers_) {
    if (rank.engine != nullptr) rank.engine->Step();
  }
  for (WorkerRank& rank : workers_) rank.engine->Step(now_);
}

bool Cluster::StepUntil(const std::function<bool()>& done) {
  for (uint32_t i = 0; i < options_.most_steps; ++i) {
    if (done()) return true;
    if (!FirstFailure().ok()) return false;
    Step();
  }
  return false;
}

std::vector<PeerLanes> Cluster::LanesTo(size_t peers) const {
  std::vector<PeerLanes> lanes;
  for (uint32_t i = 0; i < peers; ++i) {
    lanes.push_back({i, std::vector<LanePath>(options_.lanes)});
  }
  return lanes;
}

absl::Status Cluster::Connect() {
  std::vector<const Manifest*> trainers, workers;
  for (const TrainerRank& rank : trainers_) trainers.push_back(&rank.manifest);
  for (const WorkerRank& rank : workers_) workers.push_back(&rank.manifest);
  WAYBILL_ASSIGN_OR_RETURN(plan_, MakePlan(trainers, workers, {.smallest_piece_bytes = 512}));
  std::vector<std::vector<WorkerAddress>> worker_addresses(trainers_.size());
  std::vector<std::vector<TrainerAddress>> trainer_addresses(workers_.size());
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    TrainerRank& rank = trainers_[t];
    rank.events.clear();
    WAYBILL_ASSIGN_OR_RETURN(
        const auto offers,
        rank.engine->SetPlan(plan_.trainers[t],
                             {{MemoryKind::kHost, rank.memory.data(), rank.memory.size()}},
                             LanesTo(workers_.size())));
    for (const LaneOffer& offer : offers) {
      auto& peers = trainer_addresses[offer.peer];
      if (peers.empty() || peers.back().trainer != t) peers.push_back({t, {}});
      peers.back().lane_addresses.push_back(offer.address);
    }
  }
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    workers_[w].events.clear();
    WAYBILL_ASSIGN_OR_RETURN(
        const auto offers,
        workers_[w].engine->SetPlan(plan_.workers[w], plan_.hash, LanesTo(trainers_.size())));
    WAYBILL_ASSIGN_OR_RETURN(const auto buffers, workers_[w].engine->Describe());
    for (const LaneOffer& offer : offers) {
      auto& peers = worker_addresses[offer.peer];
      if (peers.empty() || peers.back().worker != w) peers.push_back({w, {}, buffers});
      peers.back().lane_addresses.push_back(offer.address);
    }
  }
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    WAYBILL_RETURN_IF_ERROR(trainers_[t].engine->Connect(worker_addresses[t]));
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

absl::Status Cluster::Prepare(uint64_t version, bool fence) {
  update_ = {.version = version, .sequence = ++sequence_, .epoch = 1, .plan_hash = plan_.hash};
  for (TrainerRank& rank : trainers_) rank.events.clear();
  for (WorkerRank& rank : workers_) {
    rank.events.clear();
    rank.engine->Prepare(update_, options_.digests, fence, now_);
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

absl::Status Cluster::StartAndArrive() {
  for (TrainerRank& rank : trainers_) {
    if (rank.engine == nullptr) continue;
    std::vector<StartTarget> targets;
    for (uint32_t w = 0; w < workers_.size(); ++w) {
      const WorkerEvent& ready = workers_[w].events.front();
      targets.push_back({w, ready.buffer_index, ready.renewed});
    }
    WAYBILL_RETURN_IF_ERROR(rank.engine->Start(update_, options_.digests, targets));
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
  for (WorkerRank& rank : workers_) rank.engine->Commit(update_.sequence);
  const bool shown = StepUntil([&] {
    for (const WorkerRank& rank : workers_) {
      if (rank.events.back().kind != WorkerEvent::Kind::kShown) return false;
    }
    return true;
  });
  return shown ? absl::OkStatus() : absl::DeadlineExceededError("a worker does not show it");
}

void Cluster::Abort(bool begun) {
  for (TrainerRank& rank : trainers_) {
    rank.events.clear();
    if (rank.engine != nullptr) rank.engine->Abort(update_.sequence);
  }
  for (WorkerRank& rank : workers_) {
    rank.events.clear();
    rank.engine->Abort(update_.sequence, begun);
  }
}

bool Cluster::UntilStopped() {
  return StepUntil([&] {
    for (const TrainerRank& rank : trainers_) {
      if (rank.engine == nullptr) continue;
      if (rank.events.empty() || rank.events.back().kind != TrainerEvent::Kind::kStopped) {
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
  for (TrainerRank& rank : trainers_) {
    const uint32_t size = SizeBytes(options_.trainer_dtype);
    ForEachElement(rank.manifest, [&](uint32_t tensor, int64_t number, uint32_t, uint64_t offset) {
      // A BF16 value, or the float that has its bits above: it rounds to that, exactly.
      const uint32_t value = ValueOf(tensor, number, version);
      const uint32_t bits = size == 4 ? value << 16 : value;
      std::memcpy(&rank.memory[offset], &bits, size);
    });
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
  ForEachElement(manifest, [&](uint32_t tensor, int64_t number, uint32_t region, uint64_t offset) {
    const uint16_t value = ValueOf(tensor, number, version);
    std::memcpy(&expected[region][offset], &value, 2);
  });
  for (uint32_t r = 0; r < manifest.region_count(); ++r) {
    const auto shown = snapshot->region(r);
    if (std::memcmp(shown.data(), expected[r].data(), shown.size()) != 0) return false;
  }
  return true;
}

void Cluster::KillTrainer(uint32_t t) {
  trainers_[t].engine.reset();
  trainers_[t].fabric.reset();
}

}  // namespace waybill
