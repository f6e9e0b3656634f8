// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "capi/call.h"
#include "capi/manifest.h"
#include "capi/struct_size.h"
#include "core/layout/checkpoint.h"
#include "core/layout/load_shards.h"
#include "core/layout/serving.h"
#include "core/layout/synthetic.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"
#include "core/tensor/manifest_check.h"

namespace waybill::capi {
namespace {

// A model's tensors; immutable.
class Layout : public Object {
 public:
  using Handle = waybill_layout_t;
  static constexpr Kind kKind = Kind::kLayout;

  ModelConfig config;
  std::vector<CheckpointTensor> tensors;
  std::optional<Checkpoint> checkpoint;  // Its data; a made-up model has none.
};

absl::StatusOr<std::shared_ptr<Layout>> OpenLayout(const waybill_layout_options_t& options) {
  WAYBILL_ASSIGN_OR_RETURN(const std::string checkpoint, Text(options.checkpoint, "checkpoint"));
  WAYBILL_ASSIGN_OR_RETURN(const std::string model, Text(options.model, "model"));
  if (checkpoint.empty() == model.empty()) {
    return absl::InvalidArgumentError("either a checkpoint or a model is to be named");
  }
  auto layout = std::make_shared<Layout>();
  if (!checkpoint.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(layout->checkpoint, Checkpoint::Open(checkpoint));
    layout->config = layout->checkpoint->config();
    layout->tensors.assign(layout->checkpoint->tensors().begin(),
                           layout->checkpoint->tensors().end());
    return layout;
  }
  const std::optional<int64_t> layers =
      options.layers == 0 ? std::nullopt : std::optional<int64_t>(options.layers);
  WAYBILL_ASSIGN_OR_RETURN(SyntheticModel synthetic, MakeSyntheticModel(model, layers));
  WAYBILL_ASSIGN_OR_RETURN(layout->config, ParseModelConfig(synthetic.config_json));
  layout->tensors = std::move(synthetic.tensors);
  return layout;
}

absl::StatusOr<WorkerLayout> WorkerOf(const waybill_layout_t* handle, const char* sharding,
                                      uint32_t rank, const char* format, const char* dtype) {
  WAYBILL_ASSIGN_OR_RETURN(const auto layout, Find<Layout>(handle, "layout"));
  WAYBILL_ASSIGN_OR_RETURN(const std::string cut, Text(sharding, "sharding"));
  WAYBILL_ASSIGN_OR_RETURN(const std::string format_name, Text(format, "format"));
  WAYBILL_ASSIGN_OR_RETURN(const std::string dtype_name, Text(dtype, "dtype"));
  WAYBILL_ASSIGN_OR_RETURN(const WorkerSharding workers,
                           WorkerSharding::Parse(cut.empty() ? "tp=1" : cut));
  if (rank >= workers.world()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " of ", workers.world(), " workers"));
  }
  WAYBILL_ASSIGN_OR_RETURN(const Serving serving,
                           ParseServing(format_name, dtype_name, layout->config));
  return MakeWorkerLayout(layout->tensors, layout->config, workers, rank, serving);
}

}  // namespace
}  // namespace waybill::capi

using waybill::capi::Call;
using waybill::capi::CheckOutput;
using waybill::capi::Find;
using waybill::capi::Layout;
using waybill::capi::MakeHandle;
using waybill::capi::ManifestObject;

waybill_status_t waybill_layout_open(const waybill_layout_options_t* options,
                                     waybill_layout_t** out_layout, waybill_error_t** error) {
  return Call("open a layout", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_layout, "out_layout"));
    WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadStruct(options, "options"));
    WAYBILL_ASSIGN_OR_RETURN(auto layout, waybill::capi::OpenLayout(read));
    *out_layout = MakeHandle(std::move(layout));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_layout_trainer_manifest(const waybill_layout_t* layout,
                                                 const char* sharding, uint32_t rank,
                                                 waybill_manifest_t** out_manifest,
                                                 waybill_error_t** error) {
  return Call("lay out a trainer", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_manifest, "out_manifest"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<Layout>(layout, "layout"));
    WAYBILL_ASSIGN_OR_RETURN(const std::string cut, waybill::capi::Text(sharding, "sharding"));
    WAYBILL_ASSIGN_OR_RETURN(const waybill::TrainerSharding trainers,
                             waybill::TrainerSharding::Parse(cut.empty() ? "fsdp=1" : cut));
    if (rank >= trainers.world()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " of ", trainers.world(), " trainers"));
    }
    WAYBILL_ASSIGN_OR_RETURN(
        waybill::Manifest manifest,
        waybill::MakeTrainerManifest(found->tensors, found->config, trainers, rank));
    *out_manifest = MakeHandle(std::make_shared<ManifestObject>(std::move(manifest)));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_layout_worker_manifest(const waybill_layout_t* layout,
                                                const char* sharding, uint32_t rank,
                                                const char* format, const char* dtype,
                                                waybill_manifest_t** out_manifest,
                                                waybill_error_t** error) {
  return Call("lay out a worker", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_manifest, "out_manifest"));
    WAYBILL_ASSIGN_OR_RETURN(waybill::WorkerLayout worker,
                             waybill::capi::WorkerOf(layout, sharding, rank, format, dtype));
    *out_manifest = MakeHandle(std::make_shared<ManifestObject>(std::move(worker.manifest)));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_layout_worker_parameters(const waybill_layout_t* layout,
                                                  const char* sharding, uint32_t rank,
                                                  const char* format, const char* dtype,
                                                  waybill_blob_t** out_json,
                                                  waybill_error_t** error) {
  return Call("lay out a worker", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_json, "out_json"));
    WAYBILL_ASSIGN_OR_RETURN(const waybill::WorkerLayout worker,
                             waybill::capi::WorkerOf(layout, sharding, rank, format, dtype));
    nlohmann::json json = nlohmann::json::array();
    for (const waybill::Parameter& parameter : worker.parameters) {
      json.push_back({{"name", parameter.name},
                      {"dtype", std::string(waybill::Name(parameter.format.dtype))},
                      {"content", static_cast<uint32_t>(parameter.format.content)},
                      {"shape", parameter.shape},
                      {"region", parameter.region_index},
                      {"offset_bytes", parameter.offset_bytes}});
    }
    *out_json = MakeHandle(std::make_shared<waybill::capi::Blob>(json.dump()));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_layout_load(const waybill_layout_t* layout,
                                     const waybill_manifest_t* manifest, void* data,
                                     uint64_t size_bytes, waybill_error_t** error) {
  return Call("load a checkpoint", error, [&]() -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<Layout>(layout, "layout"));
    WAYBILL_ASSIGN_OR_RETURN(const auto of, Find<ManifestObject>(manifest, "manifest"));
    if (!found->checkpoint) {
      return absl::FailedPreconditionError("a made-up model has no data: open a checkpoint");
    }
    if (data == nullptr && size_bytes > 0) return absl::InvalidArgumentError("data is NULL");
    const waybill::Manifest copy = of->Copy();
    WAYBILL_RETURN_IF_ERROR(waybill::CheckManifest(copy, waybill::Holes::kAllowed));
    return waybill::LoadShards(*found->checkpoint, copy,
                               absl::MakeSpan(static_cast<std::byte*>(data), size_bytes));
  });
}

void waybill_layout_destroy(waybill_layout_t* layout) {
  waybill::capi::DestroyObject<Layout>(layout);
}
