#include "tools/waybill/planned_job.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/layout/checkpoint.h"
#include "core/layout/serving.h"
#include "core/layout/synthetic.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"
#include "core/plan/planner.h"

namespace waybill {
namespace {

struct Model {
  ModelConfig config;
  std::vector<CheckpointTensor> tensors;  // Without data.
};

absl::StatusOr<Model> FindModel(const ClusterFile& file) {
  Model model;
  if (!file.checkpoint.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(file.checkpoint));
    model.config = checkpoint.config();
    for (CheckpointTensor tensor : checkpoint.tensors()) {
      tensor.data = {};
      model.tensors.push_back(std::move(tensor));
    }
    return model;
  }
  WAYBILL_ASSIGN_OR_RETURN(SyntheticModel synthetic, MakeSyntheticModel(file.model, file.layers));
  WAYBILL_ASSIGN_OR_RETURN(model.config, ParseModelConfig(synthetic.config_json));
  model.tensors = std::move(synthetic.tensors);
  return model;
}

void PutOnHost(const simulate::Hardware& hardware, Role role, uint32_t rank, Manifest& manifest) {
  const simulate::Machine& machine = role == Role::kTrainer ? hardware.trainers : hardware.workers;
  manifest.set_host(
      hardware.one_host ? "host" : absl::StrCat(Name(role), "s ", rank / machine.ranks_per_host));
  for (uint32_t n = 0; n < machine.nics_per_host / machine.ranks_per_host; ++n) {
    manifest.nics().push_back({.name = absl::StrCat("n", n),
                               .rail = n,
                               .bytes_per_second = static_cast<uint64_t>(machine.nic)});
  }
}

}  // namespace

absl::StatusOr<PlannedJob> PlanJob(const ClusterFile& file) {
  WAYBILL_ASSIGN_OR_RETURN(const Model model, FindModel(file));
  WAYBILL_ASSIGN_OR_RETURN(const TrainerSharding trainer_sharding,
                           TrainerSharding::Parse(file.trainers));
  WAYBILL_ASSIGN_OR_RETURN(const WorkerSharding worker_sharding,
                           WorkerSharding::Parse(file.workers));
  WAYBILL_ASSIGN_OR_RETURN(const Serving serving,
                           ParseServing(file.format, file.dtype, model.config));
  PlannedJob job;
  std::vector<Manifest> manifests;
  manifests.reserve(trainer_sharding.world() + worker_sharding.world());
  for (uint32_t t = 0; t < trainer_sharding.world(); ++t) {
    WAYBILL_ASSIGN_OR_RETURN(Manifest manifest,
                             MakeTrainerManifest(model.tensors, model.config, trainer_sharding, t));
    PutOnHost(file.hardware, Role::kTrainer, t, manifest);
    job.held.trainers.push_back(manifest.total_bytes());
    manifests.push_back(std::move(manifest));
  }
  for (uint32_t w = 0; w < worker_sharding.world(); ++w) {
    WAYBILL_ASSIGN_OR_RETURN(WorkerLayout layout, MakeWorkerLayout(model.tensors, model.config,
                                                                   worker_sharding, w, serving));
    PutOnHost(file.hardware, Role::kWorker, w, layout.manifest);
    job.held.workers.push_back(layout.manifest.total_bytes());
    manifests.push_back(std::move(layout.manifest));
  }
  std::vector<const Manifest*> trainers, workers;
  for (size_t i = 0; i < manifests.size(); ++i) {
    (i < trainer_sharding.world() ? trainers : workers).push_back(&manifests[i]);
  }
  const absl::Time begin = absl::Now();
  WAYBILL_ASSIGN_OR_RETURN(job.plan, MakePlan(trainers, workers));
  job.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return job;
}

}  // namespace waybill
