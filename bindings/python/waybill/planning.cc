// SPDX-License-Identifier: Apache-2.0

// Layouts and plans: pure, no network.
#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

using KeptLayout = Kept<Layout>;
using KeptPlan = Kept<Plan>;

std::unique_ptr<KeptLayout> OpenLayout(const std::string& checkpoint, const std::string& model,
                                       uint32_t layers) {
  waybill_layout_options_t options = WAYBILL_LAYOUT_OPTIONS_INIT;
  options.checkpoint = checkpoint.c_str();
  options.model = model.c_str();
  options.layers = layers;
  const abi3::Unlocked unlocked;
  return std::make_unique<KeptLayout>(Make<Layout>(waybill_layout_open, &options));
}

std::unique_ptr<KeptManifest> TrainerManifest(const KeptLayout& self, const std::string& sharding,
                                              uint32_t rank) {
  return std::make_unique<KeptManifest>(
      Make<Manifest>(waybill_layout_trainer_manifest, self.get(), sharding.c_str(), rank));
}

std::unique_ptr<KeptManifest> WorkerManifest(const KeptLayout& self, const std::string& sharding,
                                             uint32_t rank, const std::string& format,
                                             const std::string& dtype) {
  return std::make_unique<KeptManifest>(Make<Manifest>(waybill_layout_worker_manifest, self.get(),
                                                       sharding.c_str(), rank, format.c_str(),
                                                       dtype.c_str()));
}

using Manifests = std::vector<std::shared_ptr<KeptManifest>>;

std::unique_ptr<KeptPlan> BuildPlan(const Manifests& trainers, const Manifests& workers,
                                    uint64_t smallest_piece_bytes) {
  std::vector<const waybill_manifest_t*> sources, destinations;
  for (const auto& manifest : trainers) sources.push_back(manifest->get());
  for (const auto& manifest : workers) destinations.push_back(manifest->get());
  waybill_plan_options_t options = WAYBILL_PLAN_OPTIONS_INIT;
  options.trainers = sources.data();
  options.trainer_count = static_cast<uint32_t>(sources.size());
  options.workers = destinations.data();
  options.worker_count = static_cast<uint32_t>(destinations.size());
  options.smallest_piece_bytes = smallest_piece_bytes;
  const abi3::Unlocked unlocked;
  return std::make_unique<KeptPlan>(Make<Plan>(waybill_plan_build, &options));
}

abi3::Object Summarise(const KeptPlan& self) {
  waybill_plan_summary_t s = WAYBILL_PLAN_SUMMARY_INIT;
  Call(waybill_plan_summarise, self.get(), &s);
  return abi3::Dict()
      .Set("hash", s.hash)
      .Set("bytes", s.bytes)
      .Set("routes", s.routes)
      .Set("writes", s.writes)
      .Set("maxima", s.maxima)
      .Set("maxima_messages", s.maxima_messages)
      .Set("busiest_to_bound", s.busiest_to_bound)
      .Set("busiest_to_mean", s.busiest_to_mean)
      .object();
}

std::string WorkerParameters(const KeptLayout& self, const std::string& sharding, uint32_t rank,
                             const std::string& format, const std::string& dtype) {
  return Bytes(waybill_layout_worker_parameters, self.get(), sharding.c_str(), rank, format.c_str(),
               dtype.c_str());
}

void Load(const KeptLayout& self, const KeptManifest& manifest, uintptr_t address,
          uint64_t size_bytes) {
  void* data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  Call(waybill_layout_load, self.get(), manifest.get(), data, size_bytes);
}

}  // namespace

void AddPlanning(abi3::Module& module) {
  abi3::Class<KeptLayout>(module, "Layout")
      .Init<&OpenLayout, "checkpoint", "model", "layers">()
      .MethodUnlocked<"trainer_manifest", &TrainerManifest, "sharding", "rank">()
      .MethodUnlocked<"worker_manifest", &WorkerManifest, "sharding", "rank", "format", "dtype">()
      .MethodUnlocked<"worker_parameters", &WorkerParameters, "sharding", "rank", "format",
                      "dtype">()
      .MethodUnlocked<"load", &Load, "manifest", "address", "size_bytes">();
  abi3::Class<KeptPlan>(module, "Plan")
      .Init<&BuildPlan, "trainers", "workers", "smallest_piece_bytes">()
      .Method<"summary", &Summarise>()
      .MethodUnlocked<"explain",
                      [](const KeptPlan& self, const std::string& format) {
                        return Bytes(waybill_plan_explain, self.get(), format.c_str());
                      },
                      "format">();
}

}  // namespace waybill::python
