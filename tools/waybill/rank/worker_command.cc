// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/control/worker.h"
#include "core/layout/checkpoint.h"
#include "core/layout/safetensors_writer.h"
#include "core/layout/serving.h"
#include "core/layout/worker_layout.h"
#include "tools/check/check_held.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/command_line/printable.h"
#include "tools/waybill/driven_process/driven.h"
#include "tools/waybill/rank/rank_options.h"

namespace waybill {
namespace {

struct Options {
  RankOptions rank;
  std::string mode = "shadow";
  std::string dtype;
  std::string format;
  std::string dump;
  uint64_t versions = 0;
  uint32_t threads = 1;
};

absl::StatusOr<Mode> ParseMode(const std::string& text) {
  for (const Mode mode : {Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace}) {
    if (Name(mode) == text) return mode;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--mode ", text, " is not shadow, shadow-copy or in-place"));
}

class WorkerProcess {
 public:
  explicit WorkerProcess(const Options& options) : options_(options) {}

  absl::Status Join() {
    WAYBILL_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                             Checkpoint::Open(options_.rank.checkpoint));
    WAYBILL_ASSIGN_OR_RETURN(sharding_, WorkerSharding::Parse(ShardingOr(options_.rank, "tp")));
    RankIdentity identity = options_.rank.identity;
    if (sharding_.world() != identity.world) {
      return absl::InvalidArgumentError(absl::StrCat("--sharding ", options_.rank.sharding, " is ",
                                                     sharding_.world(), " ranks, --world is ",
                                                     identity.world));
    }
    WAYBILL_ASSIGN_OR_RETURN(const Serving serving,
                             ParseServing(options_.format, options_.dtype, checkpoint.config()));
    WAYBILL_ASSIGN_OR_RETURN(layout_, MakeWorkerLayout(checkpoint.tensors(), checkpoint.config(),
                                                       sharding_, identity.rank, serving));
    layout_.manifest.set_rack(options_.rank.rack);
    WorkerOptions worker{.identity = identity,
                         .engine = {.verify_threads = options_.threads},
                         .join_timeout = options_.rank.join_timeout()};
    WAYBILL_ASSIGN_OR_RETURN(worker.engine.mode, ParseMode(options_.mode));
    std::vector<MemorySpan> user_regions;
    if (worker.engine.mode == Mode::kShadowCopy) {
      engine_memory_.resize(layout_.manifest.region_bytes(0));
      user_regions.push_back({MemoryKind::kHost, engine_memory_.data(), engine_memory_.size()});
    }
    if (options_.rank.driven) {
      worker.handler = TellShown;
      worker.on_notice = TellCaughtUp;
    }
    WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                             options_.rank.fabric.Make(options_.rank.identity.controller));
    WAYBILL_ASSIGN_OR_RETURN(
        worker_, Worker::Join(worker, layout_.manifest, user_regions, std::move(fabric)));
    return absl::OkStatus();
  }

  // Serves until --versions versions have been shown, or until the job ends.
  absl::Status Serve() {
    uint64_t shown = 0;
    for (uint64_t count = 0; options_.versions == 0 || count < options_.versions; ++count) {
      constexpr absl::Duration kLong = absl::Hours(24 * 365);
      if (absl::Status status = worker_->AwaitShown(shown + 1, kLong); !status.ok()) {
        const bool job_ended =
            options_.versions == 0 && count > 0 && !absl::IsPermissionDenied(status);
        if (!job_ended) return status;
        std::cerr << "waybill: worker " << options_.rank.identity.rank
                  << " ends: " << Printable(status.message()) << std::endl;
        return absl::OkStatus();
      }
      shown = worker_->shown_version();
      std::cout << "worker " << options_.rank.identity.rank << ": version " << shown << " is shown"
                << std::endl;
      if (!options_.dump.empty()) WAYBILL_RETURN_IF_ERROR(Dump(options_.dump));
    }
    return absl::OkStatus();
  }

  void Drive() {
    Tell({{"event", "joined"},
          {"lanes", PathsOf(worker_->report().lanes)},
          {"weight_bytes", layout_.manifest.total_bytes()},
          {"parameters", layout_.parameters.size()}});
    while (const std::optional<DrivenCommand> command = ReadCommand()) {
      if (command->verb == "check") {
        const absl::StatusOr<uint64_t> compared = Check(command->number());
        nlohmann::json event = EventOf("checked", compared.status());
        event["elements"] = compared.ok() ? *compared : 0;
        event["shown_version"] = worker_->shown_version();
        event["dirty"] = worker_->dirty();
        Tell(event);
      } else if (command->verb == "stages") {
        Tell({{"event", "stages"}, {"stages", StagesToJson(worker_->report().stages)}});
      } else if (command->verb == "dump") {
        Tell(EventOf("dumped", Dump(command->argument)));
      }
    }
  }

 private:
  // Reads the clock where a real engine would be notified.
  static void TellShown(const Notice& notice, const WorkerOptions::Answer& answer) {
    if (notice.kind == Notice::Kind::kCommit) {
      Tell({{"event", "shown"},
            {"version", notice.update.version},
            {"shown_ns", SharedClockNanos()},
            {"pause_seconds", absl::ToDoubleSeconds(notice.pause)}});
    }
    answer(absl::OkStatus());
  }

  static void TellCaughtUp(const Notice& notice) {
    if (notice.kind != Notice::Kind::kCaughtUp) return;
    Tell({{"event", "caught_up"}, {"version", notice.version}});
  }

  absl::StatusOr<uint64_t> Check(uint64_t version) {
    if (stored_ == nullptr) {
      WAYBILL_ASSIGN_OR_RETURN(stored_, check::StoredCheckpoint::Open(options_.rank.checkpoint));
    }
    WAYBILL_ASSIGN_OR_RETURN(const Snapshot snapshot, worker_->TakeSnapshot("demo check"));
    if (snapshot.version() != version) {
      return absl::DataLossError(
          absl::StrCat("version ", snapshot.version(), " is shown, not ", version));
    }
    std::vector<check::HeldParameter> held;
    held.reserve(layout_.parameters.size());
    std::vector<check::Quantising> quantising;
    quantising.reserve(layout_.parameters.size());
    for (const Parameter& parameter : layout_.parameters) {
      const std::byte* data =
          snapshot.region(parameter.region_index).data() + parameter.offset_bytes;
      if (parameter.format.content == Content::kScales) {
        // Scales follow their elements, or those of another parameter of the layer's experts.
        const auto elements =
            std::find_if(held.rbegin(), held.rend(), [&](const check::HeldParameter& h) {
              return ScaleName(h.name, parameter.format.quantisation) == parameter.name;
            });
        elements->quantising = &quantising.emplace_back(QuantisingOf(parameter.format));
        elements->scales = data;
        elements->scales_shape = parameter.shape;
        continue;
      }
      held.push_back({.name = parameter.name,
                      .dtype = std::string(Name(parameter.format.dtype)),
                      .shape = parameter.shape,
                      .data = data});
    }
    return check::CheckHeld(*stored_, held, {version, options_.rank.changed},
                            {.tp = sharding_.tp,
                             .dp = sharding_.dp,
                             .ep = sharding_.ep,
                             .rank = sharding_.engine_rank(options_.rank.identity.rank),
                             .sglang = sharding_.engine == Engine::kSglang});
  }

  // Converts a format for the check, which shares no types with the planner.
  static check::Quantising QuantisingOf(const Format& format) {
    const Quantisation& q = format.quantisation;
    return {.block_rows = q.block_rows,
            .block_columns = q.block_columns,
            .cell_rows = q.scale_rows != 0 ? q.scale_rows : q.block_rows,
            .cell_columns = q.scale_columns != 0 ? q.scale_columns : q.block_columns,
            .epsilon = q.epsilon,
            .mx = q.rounding == ScaleRounding::kFloorExponent};
  }

  absl::Status Dump(const std::string& directory) {
    WAYBILL_ASSIGN_OR_RETURN(const Snapshot snapshot, worker_->TakeSnapshot("dump"));
    std::vector<CheckpointTensor> tensors;
    for (const Parameter& parameter : layout_.parameters) {
      uint64_t size_bytes = ElementBytes(parameter.format);
      for (const int64_t extent : parameter.shape) size_bytes *= static_cast<uint64_t>(extent);
      tensors.push_back({.name = parameter.name,
                         .dtype = parameter.format.dtype,
                         .shape = parameter.shape,
                         .data = snapshot.region(parameter.region_index)
                                     .subspan(parameter.offset_bytes, size_bytes)});
    }
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    return While(absl::StrCat("dump version ", snapshot.version()),
                 WriteSafetensors(absl::StrCat(directory, "/worker-", options_.rank.identity.rank,
                                               ".safetensors"),
                                  tensors, Durability::kSynced));
  }

  const Options options_;
  WorkerSharding sharding_;
  WorkerLayout layout_;
  std::vector<std::byte> engine_memory_;  // The engine's memory, in shadow-copy mode.
  std::unique_ptr<check::StoredCheckpoint> stored_;
  std::unique_ptr<Worker> worker_;
};

absl::Status RunWorker(const Options& options) {
  WorkerProcess worker(options);
  absl::Status joined = worker.Join();
  if (options.rank.driven && !joined.ok()) Tell(EventOf("joined", joined));
  WAYBILL_RETURN_IF_ERROR(joined);
  if (!options.rank.driven) return worker.Serve();
  worker.Drive();
  return absl::OkStatus();
}

}  // namespace

void AddWorkerCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "worker", "Run one worker, which holds its shards as vLLM shards and fuses them");
  options->rank.AddTo(*command);
  command->add_option(
      "--sharding", options->rank.sharding,
      "how the workers share the model: tp=2,dp=2,ep=4,engine=sglang; default: tp=WORLD");
  // begin generated from capi/options.toml: flags of worker by command->
  command
      ->add_option("--group", options->rank.identity.group,
                   "name of a worker's group, whose workers switch versions together")
      ->capture_default_str();
  command
      ->add_option("--mode", options->mode,
                   "how the worker holds versions: shadow, shadow-copy or in-place")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "how many threads verify what arrives")
      ->capture_default_str();
  // end generated
  command->add_option("--dtype", options->dtype,
                      "type in which it holds floats; default: as stored");
  command->add_option(
      "--format", options->format,
      "format in which it holds the layers' matrices: " + absl::StrJoin(QuantisationNames(), ", ") +
          "; default: what quantization_config in config.json says");
  command->add_option("--dump", options->dump,
                      "folder for a safetensors file of what is shown, after each version");
  command
      ->add_option("--versions", options->versions,
                   "leave after this many versions; 0: when the job ends")
      ->capture_default_str();
  command->callback([options, &run] { run = [options] { return RunWorker(*options); }; });
}

}  // namespace waybill
