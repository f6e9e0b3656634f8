// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/described_job/planned_job.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/layout/checkpoint.h"
#include "core/layout/every_rank.h"
#include "core/layout/serving.h"
#include "core/layout/synthetic.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest_check.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

struct Model {
  ModelConfig config;
  std::vector<CheckpointTensor> tensors;  // Without data.
  std::vector<ModelTensor> found;         // In `tensors`.

  bool has_experts() const { return config.family != nullptr && config.family->has_experts(); }
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
  } else {
    WAYBILL_ASSIGN_OR_RETURN(SyntheticModel synthetic, MakeSyntheticModel(file.model, file.layers));
    WAYBILL_ASSIGN_OR_RETURN(model.config, ParseModelConfig(synthetic.config_json));
    model.tensors = std::move(synthetic.tensors);
  }
  WAYBILL_ASSIGN_OR_RETURN(model.found, FindTensors(model.tensors, model.config));
  return model;
}

// Replaces the host, rack and NICs of a manifest by those of the description.
void PutOnHost(const simulate::Hardware& hardware, Role role, uint32_t rank, Manifest& manifest) {
  const simulate::Machine& machine = role == Role::kTrainer ? hardware.trainers : hardware.workers;
  manifest.nics().clear();
  manifest.set_host(
      hardware.one_host ? "host" : absl::StrCat(Name(role), "s ", rank / machine.ranks_per_host));
  manifest.set_rack(simulate::SharedRackOf(hardware, role, rank));
  for (uint32_t n = 0; n < machine.nics_per_host / machine.ranks_per_host; ++n) {
    manifest.nics().push_back({.name = absl::StrCat("n", n),
                               .rail = n,
                               .bytes_per_second = static_cast<uint64_t>(machine.nic)});
  }
}

// Names where the file says what could not be read.
template <typename T>
absl::StatusOr<T> At(const std::string& place, absl::StatusOr<T> read) {
  if (read.ok() || place.empty()) return read;
  return While(place, read.status());
}

absl::StatusOr<std::vector<Manifest>> MakeTrainers(const ClusterFile& file, const Model& model) {
  WAYBILL_ASSIGN_OR_RETURN(const TrainerSharding sharding,
                           At(file.trainers.place, TrainerSharding::Parse(file.trainers.sharding)));
  return At(file.trainers.place, MakeManifests(sharding, model.has_experts(), [&](uint32_t rank) {
              return MakeTrainerManifest(model.found, model.config, sharding, rank);
            }));
}

absl::StatusOr<std::vector<Manifest>> MakeWorkers(const ClusterFile& file, const Model& model) {
  WAYBILL_ASSIGN_OR_RETURN(const WorkerSharding sharding,
                           At(file.workers.place, WorkerSharding::Parse(file.workers.sharding)));
  WAYBILL_ASSIGN_OR_RETURN(
      const Serving serving,
      At(file.format_place, ParseServing(file.format, file.dtype, model.config)));
  WAYBILL_ASSIGN_OR_RETURN(const auto parameters,
                           FindParameters(model.found, model.config, sharding.engine));
  return At(
      file.workers.place,
      MakeManifests(sharding, model.has_experts(), [&](uint32_t rank) -> absl::StatusOr<Manifest> {
        WAYBILL_ASSIGN_OR_RETURN(WorkerLayout layout, MakeWorkerLayout(parameters, model.config,
                                                                       sharding, rank, serving));
        return std::move(layout.manifest);
      }));
}

absl::StatusOr<Manifest> ReadManifest(const std::string& path, Holes holes) {
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  if (!stream) return absl::NotFoundError(absl::StrCat("cannot read the manifest ", path));
  absl::StatusOr<Manifest> manifest = DecodeManifest(bytes);
  absl::Status status = manifest.ok() ? CheckManifest(*manifest, holes) : manifest.status();
  if (!status.ok()) return While(absl::StrCat("reading the manifest ", path), std::move(status));
  return manifest;
}

absl::StatusOr<std::vector<Manifest>> ReadManifests(const Side& side, Holes holes) {
  std::vector<Manifest> manifests;
  manifests.reserve(side.manifests.size() * side.replicas);
  for (const std::string& path : side.manifests) {
    WAYBILL_ASSIGN_OR_RETURN(Manifest manifest, At(side.place, ReadManifest(path, holes)));
    manifests.push_back(std::move(manifest));
  }
  for (uint32_t replica = 1; replica < side.replicas; ++replica) {
    for (size_t i = 0; i < side.manifests.size(); ++i) manifests.push_back(manifests[i]);
  }
  return manifests;
}

// Many expect `dp` to be a number of engines, which moves several times the bytes.
std::vector<std::string> WarningsOf(const ClusterFile& file) {
  const absl::StatusOr<WorkerSharding> workers = WorkerSharding::Parse(file.workers.sharding);
  if (!workers.ok() || workers->dp == 1 || workers->ep > 1 || workers->replicas > 1) return {};
  WorkerSharding engines = *workers;
  std::swap(engines.dp, engines.replicas);
  return {absl::StrCat("workers ", ToString(*workers), " are one engine of ", workers->world(),
                       " ranks, which holds its attention ", workers->dp, " times; ", workers->dp,
                       " engines are ", ToString(engines))};
}

}  // namespace

absl::StatusOr<PlannedJob> PlanJob(const ClusterFile& file) {
  std::vector<Manifest> senders, receivers;
  Model model;
  if (file.trainers.manifests.empty() || file.workers.manifests.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(model, At(file.model_place, FindModel(file)));
  }
  WAYBILL_ASSIGN_OR_RETURN(senders, file.trainers.manifests.empty()
                                        ? MakeTrainers(file, model)
                                        : ReadManifests(file.trainers, Holes::kAllowed));
  WAYBILL_ASSIGN_OR_RETURN(receivers, file.workers.manifests.empty()
                                          ? MakeWorkers(file, model)
                                          : ReadManifests(file.workers, Holes::kRefused));
  for (uint32_t rank = 0; rank < senders.size(); ++rank) {
    PutOnHost(file.hardware, Role::kTrainer, rank, senders[rank]);
  }
  for (uint32_t rank = 0; rank < receivers.size(); ++rank) {
    PutOnHost(file.hardware, Role::kWorker, rank, receivers[rank]);
  }
  PlannedJob job;
  job.warnings = WarningsOf(file);
  std::vector<const Manifest*> trainers, workers;
  trainers.reserve(senders.size());
  workers.reserve(receivers.size());
  for (const Manifest& manifest : senders) {
    trainers.push_back(&manifest);
    job.held.senders.push_back(manifest.total_bytes());
  }
  for (const Manifest& manifest : receivers) {
    workers.push_back(&manifest);
    job.held.receivers.push_back(manifest.total_bytes());
  }
  const absl::Time begin = SteadyNow();
  WAYBILL_ASSIGN_OR_RETURN(job.plan, MakePlan(trainers, workers, {.relays = file.relays}));
  job.seconds = absl::ToDoubleSeconds(SteadyNow() - begin);
  return job;
}

}  // namespace waybill
