// SPDX-License-Identifier: Apache-2.0

// One rank of testing/bench:python_update and of testing/stacks/vllm_timing.py, in C++, on the core
// itself: takes commands, tells times.
//
// usage: cpp_rank trainer|worker CONTROLLER RANK WORLD MODEL FABRIC shadow|shadow-copy
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/control/trainer.h"
#include "core/control/worker.h"
#include "core/fabric/choice/make_fabric.h"
#include "core/layout/synthetic.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"

namespace waybill {
namespace {

int64_t MonotonicNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

struct Arguments {
  RankIdentity identity;
  Mode mode = Mode::kShadow;
  ModelConfig config;
  std::vector<CheckpointTensor> tensors;
};

absl::Status Train(const Arguments& arguments, std::unique_ptr<Fabric> fabric) {
  const RankIdentity& identity = arguments.identity;
  WAYBILL_ASSIGN_OR_RETURN(const Manifest manifest,
                           MakeTrainerManifest(arguments.tensors, arguments.config,
                                               {.fsdp = identity.world}, identity.rank));
  std::vector<std::byte> weights(manifest.region_bytes(0), std::byte{1});
  WAYBILL_ASSIGN_OR_RETURN(
      const auto trainer,
      Trainer::Join({.identity = identity, .engine = {}}, manifest,
                    {{MemoryKind::kHost, weights.data(), weights.size()}}, std::move(fabric)));
  std::cout << "joined" << std::endl;
  for (uint64_t version = 0; std::cin >> version;) {
    const int64_t begin = MonotonicNanoseconds();
    WAYBILL_RETURN_IF_ERROR(trainer->Publish(version, {.timeout = absl::Seconds(60)}));
    WAYBILL_RETURN_IF_ERROR(trainer->AwaitOutcome(absl::Seconds(60)).status());
    std::cout << "published " << begin << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Serve(const Arguments& arguments, std::unique_ptr<Fabric> fabric) {
  const RankIdentity& identity = arguments.identity;
  WAYBILL_ASSIGN_OR_RETURN(
      WorkerLayout layout,
      MakeWorkerLayout(arguments.tensors, arguments.config, {.tp = identity.world}, identity.rank));
  std::vector<std::byte> shown;
  std::vector<MemorySpan> lent;
  if (arguments.mode == Mode::kShadowCopy) {
    shown.resize(layout.manifest.region_bytes(0));
    lent.push_back({MemoryKind::kHost, shown.data(), shown.size()});
  }
  WAYBILL_ASSIGN_OR_RETURN(const auto worker,
                           Worker::Join({.identity = identity, .engine = {.mode = arguments.mode}},
                                        std::move(layout.manifest), lent, std::move(fabric)));
  std::cout << "joined" << std::endl;
  for (uint64_t version = 0; std::cin >> version;) {
    WAYBILL_RETURN_IF_ERROR(worker->AwaitShown(version, absl::Seconds(60)));
    std::cout << "shown " << MonotonicNanoseconds() << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Run(char** words) {
  Arguments arguments;
  arguments.identity.controller = words[2];
  arguments.identity.rank = static_cast<uint32_t>(std::strtol(words[3], nullptr, 10));
  arguments.identity.world = static_cast<uint32_t>(std::strtol(words[4], nullptr, 10));
  WAYBILL_ASSIGN_OR_RETURN(SyntheticModel model, MakeSyntheticModel(words[5], std::nullopt));
  WAYBILL_ASSIGN_OR_RETURN(arguments.config, ParseModelConfig(model.config_json));
  arguments.tensors = std::move(model.tensors);
  WAYBILL_ASSIGN_OR_RETURN(const std::optional<FabricKind> forced, ParseFabricKind(words[6]));
  if (std::string(words[7]) == "shadow-copy") arguments.mode = Mode::kShadowCopy;
  WAYBILL_ASSIGN_OR_RETURN(auto fabric, MakeFabric({.forced = forced}));
  return std::string(words[1]) == "trainer" ? Train(arguments, std::move(fabric))
                                            : Serve(arguments, std::move(fabric));
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) {
  if (argc != 8) {
    std::cerr << "usage: cpp_rank trainer|worker CONTROLLER RANK WORLD MODEL FABRIC MODE\n";
    return 2;
  }
  const absl::Status status = waybill::Run(argv);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
