// SPDX-License-Identifier: Apache-2.0

#include "testing/job/job.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/local/local_fabric.h"

namespace waybill {
namespace {

constexpr Format kBf16{Dtype::kBf16};

uint16_t ValueOf(int64_t element, uint64_t version) {
  return static_cast<uint16_t>(version * 1000 + static_cast<uint64_t>(element));
}

int64_t Cut(int64_t size, uint32_t i, uint32_t n) { return size * i / n; }

Manifest OneShard(const Box& box) {
  Manifest m;
  m.AddRegion("w", static_cast<uint64_t>(box.element_count()) * 2);
  m.AddShard(m.AddTensor("w", {Job::kRows, Job::kColumns}, Dtype::kBf16), kBf16, box,
             {0, 0, {box.extent(1), 1}});
  return m;
}

Box RowsOf(uint32_t t, uint32_t n) {
  return Box({Cut(Job::kRows, t, n), 0}, {Cut(Job::kRows, t + 1, n), Job::kColumns});
}

Box ColumnsOf(uint32_t w, uint32_t n) {
  return Box({0, Cut(Job::kColumns, w, n)}, {Job::kRows, Cut(Job::kColumns, w + 1, n)});
}

std::vector<std::byte> BytesOf(const Box& box, uint64_t version) {
  std::vector<std::byte> bytes;
  for (int64_t r = box.begin(0); r < box.end(0); ++r) {
    for (int64_t c = box.begin(1); c < box.end(1); ++c) {
      const uint16_t value = ValueOf(r * Job::kColumns + c, version);
      bytes.push_back(static_cast<std::byte>(value & 0xFF));
      bytes.push_back(static_cast<std::byte>(value >> 8));
    }
  }
  return bytes;
}

class OwnModel final : public ClusterModel {
 public:
  // `parts`: over how many trainers the rows are cut. `workers`: what each of them holds.
  OwnModel(uint32_t parts, std::vector<Box> workers)
      : parts_(parts), workers_(std::move(workers)) {}

  Manifest Trainer(uint32_t t) const override { return OneShard(RowsOf(t % parts_, parts_)); }
  Manifest Worker(uint32_t w) const override { return OneShard(workers_[w]); }
  void Fill(uint64_t version, const Manifest& trainer, std::byte* memory) const override {
    const std::vector<std::byte> bytes = BytesOf(trainer.shard(0).box, version);
    std::memcpy(memory, bytes.data(), bytes.size());
  }
  void Expect(uint64_t version, const Manifest& worker,
              std::vector<std::vector<std::byte>>& regions) const override {
    regions[0] = BytesOf(worker.shard(0).box, version);
  }

 private:
  const uint32_t parts_;
  const std::vector<Box> workers_;
};

// A worker's place in its group.
struct GroupPlace {
  std::string group;
  uint32_t rank = 0;
  uint32_t world = 0;
};

GroupPlace PlaceOf(const JobOptions& options, uint32_t w) {
  const auto group_of = [&](uint32_t worker) {
    return worker < options.groups.size() ? options.groups[worker] : std::string(kDefaultGroup);
  };
  GroupPlace place{group_of(w)};
  for (uint32_t other = 0; other < options.workers; ++other) {
    if (group_of(other) != place.group) continue;
    place.rank += other < w ? 1 : 0;
    ++place.world;
  }
  return place;
}

std::shared_ptr<const ClusterModel> MakeOwnModel(const JobOptions& options) {
  std::vector<Box> workers;
  for (uint32_t w = 0; w < options.workers; ++w) {
    const GroupPlace place = PlaceOf(options, w);
    workers.push_back(options.relays ? ColumnsOf(0, 1) : ColumnsOf(place.rank, place.world));
  }
  return std::make_shared<OwnModel>(options.trainers / options.replicas, std::move(workers));
}

}  // namespace

Job::Job(const JobOptions& options)
    : options_(options),
      model_(options.model != nullptr ? options.model : MakeOwnModel(options)),
      memory_(options.trainers),
      engine_memory_(options.workers),
      trainers_(options.trainers),
      workers_(options.workers),
      trainer_options_(
          options.trainers,
          {.identity = {}, .engine = {.ring_bytes = 64 << 10, .chunk_bytes = 4 << 10}}),
      handlers_(options.workers) {}

absl::Status Job::StartController(const std::string& listen) {
  ControllerOptions options;
  options.coordinator.job = "test";
  options.token = options_.token;
  options.coordinator.required_groups = options_.required;
  options.coordinator.join_timeout = options_.join_timeout;
  options.coordinator.absence_timeout = options_.absence_timeout;
  options.coordinator.relays = options_.relays ? Relays::kAlways : Relays::kNever;
  options.listen = listen;
  options.state = options_.state;
  options.observer = options_.observer;
  WAYBILL_ASSIGN_OR_RETURN(controller_, Controller::Start(options));
  address_ = controller_->address();
  return absl::OkStatus();
}

RankIdentity Job::Identity(uint32_t rank, uint32_t world) const {
  return {
      .controller = address_, .job = "test", .token = options_.token, .rank = rank, .world = world};
}

std::unique_ptr<Fabric> Job::MakeFabric(const std::string& rank) const {
  return options_.make_fabric ? options_.make_fabric(rank) : *MakeLocalFabric();
}

absl::Status Job::JoinTrainer(uint32_t t) {
  const Manifest manifest = model_->Trainer(t);
  memory_[t].resize(manifest.region_bytes(0));
  auto fabric = MakeFabric(absl::StrCat("trainer ", t));
  TrainerOptions options = trainer_options_[t];
  options.identity = Identity(t, options_.trainers);
  options.join_timeout = options_.join_timeout;
  WAYBILL_ASSIGN_OR_RETURN(
      trainers_[t],
      Trainer::Join(options, manifest, {{MemoryKind::kHost, memory_[t].data(), memory_[t].size()}},
                    std::move(fabric)));
  return absl::OkStatus();
}

absl::Status Job::JoinWorker(uint32_t w) {
  const GroupPlace place = PlaceOf(options_, w);
  WorkerOptions options{.identity = Identity(place.rank, place.world),
                        .engine = {.mode = options_.mode},
                        .join_timeout = options_.join_timeout,
                        .handler = handlers_[w]};
  options.identity.group = place.group;
  options.identity.fetches = options_.fetching.contains(w);
  const Manifest manifest = model_->Worker(w);
  std::vector<MemorySpan> user_regions;
  engine_memory_[w].clear();
  for (uint32_t r = 0; options_.mode == Mode::kShadowCopy && r < manifest.region_count(); ++r) {
    std::vector<std::byte>& memory = engine_memory_[w].emplace_back(manifest.region_bytes(r));
    user_regions.push_back({MemoryKind::kHost, memory.data(), memory.size()});
  }
  auto fabric = MakeFabric(absl::StrCat("worker ", w));
  WAYBILL_ASSIGN_OR_RETURN(workers_[w],
                           Worker::Join(options, manifest, user_regions, std::move(fabric)));
  return absl::OkStatus();
}

absl::Status Job::JoinAs(const RankIdentity& identity) {
  WAYBILL_ASSIGN_OR_RETURN(auto fabric, MakeLocalFabric());
  return Worker::Join({.identity = identity, .join_timeout = options_.join_timeout}, {}, {},
                      std::move(fabric))
      .status();
}

absl::Status Job::JoinAll() {
  std::vector<absl::Status> statuses(options_.trainers + options_.workers);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < options_.trainers; ++t) {
    threads.emplace_back([&, t] { statuses[t] = JoinTrainer(t); });
  }
  for (uint32_t w = 0; w < options_.workers; ++w) {
    threads.emplace_back([&, w] { statuses[options_.trainers + w] = JoinWorker(w); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) WAYBILL_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

void Job::Fill(uint64_t version) {
  for (uint32_t t = 0; t < options_.trainers; ++t) FillTrainer(t, version);
}

void Job::FillTrainer(uint32_t t, uint64_t version) {
  model_->Fill(version, model_->Trainer(t), memory_[t].data());
}

std::vector<absl::Status> Job::PublishAll(uint64_t version, const PublishOptions& options) {
  Fill(version);
  std::vector<absl::Status> statuses(options_.trainers);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < options_.trainers; ++t) {
    threads.emplace_back([&, t] {
      if (trainers_[t] != nullptr) {
        statuses[t] = trainers_[t]->Publish(version, options);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

bool Job::Shows(uint32_t w, uint64_t version) {
  const absl::StatusOr<Snapshot> snapshot = workers_[w]->TakeSnapshot("test");
  if (!snapshot.ok() || snapshot->version() != version) return false;
  if (absl::IsDataLoss(workers_[w]->Verify().status())) return false;
  const Manifest manifest = model_->Worker(w);
  std::vector<std::vector<std::byte>> expected;
  for (uint32_t r = 0; r < manifest.region_count(); ++r) {
    expected.emplace_back(manifest.region_bytes(r), std::byte{0});
  }
  model_->Expect(version, manifest, expected);
  for (uint32_t r = 0; r < manifest.region_count(); ++r) {
    const auto shown = snapshot->region(r);
    if (!std::equal(shown.begin(), shown.end(), expected[r].begin(), expected[r].end())) {
      return false;
    }
  }
  return true;
}

}  // namespace waybill
