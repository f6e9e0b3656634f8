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

// Names the place of a text that could not be read.
template <typename T>
absl::StatusOr<T> At(const std::string& place, absl::StatusOr<T> read) {
  if (read.ok() || place.empty()) return read;
  return While(place, read.status());
}

// Calls make(rank) for the first rank of each kind. Ranks that hold the same share its manifest,
// except for their hosts and NICs.
template <typename Sharding, typename Make>
absl::StatusOr<std::vector<Manifest>> MakeManifests(const ClusterFile& file, Role role,
                                                    const Sharding& sharding, bool has_experts,
                                                    Make make) {
  std::vector<Manifest> manifests;
  manifests.reserve(sharding.world());
  for (uint32_t rank = 0; rank < sharding.world(); ++rank) {
    if (const uint32_t first = sharding.FirstLike(rank, has_experts); first < rank) {
      manifests.push_back(manifests[first]);
      manifests.back().nics().clear();
    } else {
      WAYBILL_ASSIGN_OR_RETURN(Manifest manifest, make(rank));
      manifests.push_back(std::move(manifest));
    }
    PutOnHost(file.hardware, role, rank, manifests.back());
  }
  return manifests;
}

}  // namespace

absl::StatusOr<PlannedJob> PlanJob(const ClusterFile& file) {
  WAYBILL_ASSIGN_OR_RETURN(const Model model, FindModel(file));
  WAYBILL_ASSIGN_OR_RETURN(const TrainerSharding trainer_sharding,
                           At(file.trainers_place, TrainerSharding::Parse(file.trainers)));
  WAYBILL_ASSIGN_OR_RETURN(const WorkerSharding worker_sharding,
                           At(file.workers_place, WorkerSharding::Parse(file.workers)));
  WAYBILL_ASSIGN_OR_RETURN(const Serving serving,
                           ParseServing(file.format, file.dtype, model.config));
  PlannedJob job;
  const bool has_experts = model.config.family != nullptr && model.config.family->has_experts();
  WAYBILL_ASSIGN_OR_RETURN(const auto tensors, FindTensors(model.tensors, model.config));
  WAYBILL_ASSIGN_OR_RETURN(
      std::vector<Manifest> senders,
      MakeManifests(file, Role::kTrainer, trainer_sharding, has_experts, [&](uint32_t rank) {
        return MakeTrainerManifest(tensors, model.config, trainer_sharding, rank);
      }));
  WAYBILL_ASSIGN_OR_RETURN(const auto parameters,
                           FindParameters(tensors, model.config, worker_sharding.engine));
  WAYBILL_ASSIGN_OR_RETURN(std::vector<Manifest> receivers,
                           MakeManifests(file, Role::kWorker, worker_sharding, has_experts,
                                         [&](uint32_t rank) -> absl::StatusOr<Manifest> {
                                           WAYBILL_ASSIGN_OR_RETURN(
                                               WorkerLayout layout,
                                               MakeWorkerLayout(parameters, model.config,
                                                                worker_sharding, rank, serving));
                                           return std::move(layout.manifest);
                                         }));
  std::vector<const Manifest*> trainers, workers;
  trainers.reserve(senders.size());
  workers.reserve(receivers.size());
  for (const Manifest& manifest : senders) {
    trainers.push_back(&manifest);
    job.held.trainers.push_back(manifest.total_bytes());
  }
  for (const Manifest& manifest : receivers) {
    workers.push_back(&manifest);
    job.held.workers.push_back(manifest.total_bytes());
  }
  const absl::Time begin = absl::Now();
  WAYBILL_ASSIGN_OR_RETURN(job.plan, MakePlan(trainers, workers, {.relays = file.relays}));
  job.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return job;
}

}  // namespace waybill
