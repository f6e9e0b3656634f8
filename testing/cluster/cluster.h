// SPDX-License-Identifier: Apache-2.0

// Trainers and workers in one process, driven step by step without a controller, for tests of the
// engines and the layers below them.
#ifndef WAYBILL_TESTING_CLUSTER_CLUSTER_H_
#define WAYBILL_TESTING_CLUSTER_CLUSTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/engine/receiver_engine.h"
#include "core/engine/sender_engine.h"
#include "core/fabric/fabric.h"
#include "core/plan/plan.h"
#include "core/plan/rest.h"
#include "core/tensor/manifest.h"
#include "testing/cluster/cluster_model.h"

namespace waybill {

// Memory for ranks that is not the host's.
class ClusterMemory {
 public:
  virtual ~ClusterMemory() = default;
  virtual MemorySpan Allocate(size_t size_bytes) = 0;
  virtual void Write(const MemorySpan& to, const std::byte* from) = 0;
  virtual void Read(const MemorySpan& from, std::byte* to) = 0;
};
std::shared_ptr<ClusterMemory> MakeHostMemory();

struct ClusterOptions {
  uint32_t trainers = 2;
  uint32_t workers = 2;
  Mode mode = Mode::kShadow;
  Dtype trainer_dtype = Dtype::kBf16;
  Digests digests = Digests::kOn;
  // True if workers bring their own memory, which shadow-copy needs and in-place allows.
  bool user_memory = false;
  std::optional<int>
      arena_gpu;  // The workers' buffers are that GPU's, as `worker_memory` reads it.
  std::shared_ptr<ClusterMemory> trainer_memory = MakeHostMemory();
  std::shared_ptr<ClusterMemory> worker_memory = MakeHostMemory();
  SenderEngineOptions trainer = {
      .ring_bytes = 64 << 10, .chunk_bytes = 8 << 10, .stage_threads = 0};
  uint32_t verify_threads = 0;
  uint32_t lanes = 1;   // From each trainer to each worker.
  bool direct = false;  // Trainers register their tensors, and send runs of any length from there.
  std::shared_ptr<const ClusterModel> model;  // Null: the plain model.
  // Changes the plan's exchanges before any rank gets them.
  std::function<void(std::vector<Exchange>&)> spoil_exchanges;
  // The number of steps after which nothing more is expected to happen.
  uint32_t most_steps = 100'000;
};

class Cluster {
 public:
  using MakeFabric = std::function<std::unique_ptr<Fabric>(const std::string& name)>;

  Cluster(const ClusterOptions& options, const MakeFabric& make_fabric);
  ~Cluster();

  // Says whether the lanes between a trainer and a worker go on.
  using Keeps = std::function<bool(uint32_t trainer, uint32_t worker)>;
  // Plans and connects all ranks. Returns the first error.
  absl::Status Connect(const Keeps& keeps = [](uint32_t, uint32_t) { return false; });

  // The parts of an update. Each drives all engines until that part is done, or until nothing moves
  // any more.
  absl::Status Prepare(uint64_t version);
  // Begins an update that every worker abandons as if a trainer might still be writing, so that its
  // buffer is renewed.
  absl::Status Abandon(uint64_t version);
  // Starts one trainer with what the plan has it send, and tells it the addresses of the buffers.
  absl::Status Start(uint32_t t);
  // Returns what a trainer must send and to which buffers, as the workers answered to Prepare().
  std::vector<StartTarget> TargetsOf(uint32_t t) const;
  absl::Status StartAndArrive();  // Starts all living trainers.
  absl::Status Commit();
  void Abort(bool begun);
  // After Abort(), runs until nothing of the update can land. Returns false if a trainer does not
  // report that.
  bool UntilStopped();
  // Runs all parts, and aborts if one fails.
  absl::Status Publish(uint64_t version);

  // Fills the memory of the trainers with the bytes of a version.
  void FillTrainers(uint64_t version);
  // Returns true if worker `w` shows exactly the bytes of `version`.
  bool Shows(uint32_t w, uint64_t version);

  void Step();
  void StepTrainers();
  // Runs until `done` returns true, or until nothing moves any more.
  bool StepUntil(const std::function<bool()>& done);

  ReceiverEngine& worker(uint32_t w) { return *workers_[w].engine; }
  SenderEngine& trainer(uint32_t t) { return *trainers_[t].engine; }
  StagingArea& staging(uint32_t t) { return *trainers_[t].staging; }
  Fabric& worker_fabric(uint32_t w) { return *workers_[w].fabric; }
  Fabric& trainer_fabric(uint32_t t) { return *trainers_[t].fabric; }
  const Plan& plan() const { return plan_; }
  const PlanTables& tables() const { return tables_; }
  const Manifest& worker_manifest(uint32_t w) const { return workers_[w].manifest; }
  std::vector<SenderEvent>& trainer_events(uint32_t t) { return trainers_[t].events; }
  std::vector<ReceiverEvent>& worker_events(uint32_t w) { return workers_[w].events; }
  const UpdateId& update() const { return update_; }  // The latest update.
  absl::Time& now() { return now_; }
  void KillTrainer(uint32_t t);

 private:
  struct TrainerRank {
    Manifest manifest;
    MemorySpan memory;
    std::unique_ptr<Fabric> fabric;
    std::unique_ptr<StagingArea> staging;
    std::unique_ptr<SenderEngine> engine;
    std::vector<FabricEvent> fabric_events;
    std::vector<SenderEvent> events;
  };
  struct WorkerRank {
    Manifest manifest;
    std::unique_ptr<Fabric> fabric;
    std::unique_ptr<ReceiverEngine> engine;
    std::vector<FabricEvent> fabric_events;
    std::vector<ReceiverEvent> events;
  };

  // Hands the fabric's events on to the engine.
  template <typename Rank>
  static void HandOn(Rank& rank);
  absl::Status FirstFailure() const;
  // `pair_with` gives a peer's pair of trainer and worker.
  TermLanes LanesTo(Role role, size_t peers,
                    const std::function<RankPair(uint32_t peer)>& pair_with,
                    const Keeps& keeps) const;

  ClusterOptions options_;
  std::shared_ptr<const ClusterModel> model_;
  std::vector<TrainerRank> trainers_;
  std::vector<WorkerRank> workers_;
  Plan plan_;
  PlanTables tables_;
  UpdateId update_;
  uint32_t term_ = 0;
  uint32_t sequence_ = 0;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_CLUSTER_H_
