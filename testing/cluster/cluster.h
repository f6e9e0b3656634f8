// Trainers and workers in one process, driven step by step without a controller: for tests of the
// engines and of what lies below them.
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
#include "core/engine/trainer_engine.h"
#include "core/engine/worker_engine.h"
#include "core/fabric/fabric.h"
#include "core/plan/plan.h"
#include "core/tensor/manifest.h"
#include "testing/cluster/cluster_model.h"

namespace waybill {

// Where ranks have memory of their own.
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
  // Workers bring memory of their own (needed in shadow-copy, possible in place).
  bool user_memory = false;
  std::shared_ptr<ClusterMemory> trainer_memory = MakeHostMemory();
  std::shared_ptr<ClusterMemory> worker_memory = MakeHostMemory();
  TrainerEngineOptions trainer = {
      .ring_bytes = 64 << 10, .chunk_bytes = 8 << 10, .stage_threads = 0};
  uint32_t verify_threads = 0;
  uint32_t lanes = 1;                         // Of each trainer to each worker.
  std::shared_ptr<const ClusterModel> model;  // Null: the plain one.
  // What is done to the plan before anybody gets it.
  std::function<void(Plan&)> spoil_plan;
  // After so many steps nothing more is expected to happen.
  uint32_t most_steps = 100'000;
};

class Cluster {
 public:
  using MakeFabric = std::function<std::unique_ptr<Fabric>(const std::string& name)>;

  Cluster(const ClusterOptions& options, const MakeFabric& make_fabric);
  ~Cluster();

  // Plans and connects; a first failure is returned.
  absl::Status Connect();

  // One update by hand, in parts. Each drives all engines until what is said has happened, or
  // nothing moves any more.
  absl::Status Prepare(uint64_t version, bool fence = false);
  absl::Status Start(uint32_t t);  // One trainer, for what the plan has it send.
  absl::Status StartAndArrive();   // All that live.
  absl::Status Commit();
  void Abort(bool begun);
  // After Abort(): until nothing of the update can land. False where a trainer does not say so.
  bool UntilStopped();
  // All of them; aborts where one fails.
  absl::Status Publish(uint64_t version);

  // Fills the trainers' memory with a version's bytes.
  void FillTrainers(uint64_t version);
  // Whether worker `w` shows exactly the bytes of `version`.
  bool Shows(uint32_t w, uint64_t version);

  void Step();
  // Until `done`, for as long as anything moves.
  bool StepUntil(const std::function<bool()>& done);

  WorkerEngine& worker(uint32_t w) { return *workers_[w].engine; }
  TrainerEngine& trainer(uint32_t t) { return *trainers_[t].engine; }
  Fabric& worker_fabric(uint32_t w) { return *workers_[w].fabric; }
  Fabric& trainer_fabric(uint32_t t) { return *trainers_[t].fabric; }
  const Plan& plan() const { return plan_; }
  const Manifest& worker_manifest(uint32_t w) const { return workers_[w].manifest; }
  std::vector<TrainerEvent>& trainer_events(uint32_t t) { return trainers_[t].events; }
  std::vector<WorkerEvent>& worker_events(uint32_t w) { return workers_[w].events; }
  const UpdateId& update() const { return update_; }  // The latest.
  absl::Time& now() { return now_; }
  void KillTrainer(uint32_t t);

 private:
  struct TrainerRank {
    Manifest manifest;
    MemorySpan memory;
    std::unique_ptr<Fabric> fabric;
    std::unique_ptr<TrainerEngine> engine;
    std::vector<TrainerEvent> events;
  };
  struct WorkerRank {
    Manifest manifest;
    std::unique_ptr<Fabric> fabric;
    std::unique_ptr<WorkerEngine> engine;
    std::vector<WorkerEvent> events;
  };

  absl::Status FirstFailure() const;
  std::vector<PeerLanes> LanesTo(size_t peers) const;

  ClusterOptions options_;
  std::shared_ptr<const ClusterModel> model_;
  std::vector<TrainerRank> trainers_;
  std::vector<WorkerRank> workers_;
  Plan plan_;
  UpdateId update_;
  uint32_t sequence_ = 0;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_CLUSTER_H_
