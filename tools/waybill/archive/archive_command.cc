// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/narrow.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/ask_controller.h"
#include "core/control/worker.h"
#include "core/tensor/box.h"
#include "core/tensor/manifest.h"
#include "tools/waybill/archive/archive.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/rank/rank_options.h"

namespace waybill {
namespace {

struct Options {
  RankOptions rank;
  std::string folder;
  uint64_t every = 1;
  uint64_t keep = 0;
};

// A worker that holds one part of the tensors as the trainers declare them. Its group gets versions
// by fetching them, so none comes while the last one is being written, and one copy in memory is
// enough.
class Archivist {
 public:
  Archivist(const Options& options, Archive archive)
      : options_(options), archive_(std::move(archive)) {}

  absl::Status Join() {
    const RankIdentity& identity = options_.rank.identity;
    if (identity.rank >= identity.world) {
      return absl::InvalidArgumentError(absl::StrCat("--rank ", identity.rank, " of --world ",
                                                     identity.world, ": ranks count from 0"));
    }
    WAYBILL_ASSIGN_OR_RETURN(
        const Manifest declared,
        FetchTensors(identity.controller, identity.token, options_.rank.join_timeout()));
    std::vector<CheckpointTensor> tensors;
    tensors.reserve(declared.tensor_count());
    for (uint32_t i = 0; i < declared.tensor_count(); ++i) {
      const absl::Span<const int64_t> shape = declared.tensor_shape(i);
      tensors.push_back({.name = std::string(declared.tensor_name(i)),
                         .dtype = declared.tensor_dtype(i),
                         .shape = {shape.begin(), shape.end()}});
    }
    parts_ = DealTensors(tensors, identity.world);
    if (part().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--world ", identity.world, ": there are ",
                                                     tensors.size(), " tensors, fewer than that"));
    }
    const Manifest manifest = MakeRoom();
    WorkerOptions worker{.identity = identity,
                         .engine = {.mode = Mode::kInPlace},
                         .join_timeout = options_.rank.join_timeout()};
    WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                             options_.rank.fabric.Make(identity.controller));
    WAYBILL_ASSIGN_OR_RETURN(
        worker_,
        Worker::Join(worker, manifest, {{MemoryKind::kHost, memory_.data(), memory_.size()}},
                     std::move(fabric)));
    return absl::OkStatus();
  }

  // Archives versions until the job ends.
  absl::Status Serve() {
    WAYBILL_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, archive_.Versions());
    uint64_t wanted = versions.empty() ? 1 : versions.back() + options_.every;
    Say(absl::StrCat("waits for version ", wanted, " or later; the archive has ", versions.size(),
                     versions.empty() ? "" : absl::StrCat(", up to ", versions.back())));
    while (true) {
      const absl::StatusOr<uint64_t> fetched = worker_->Fetch(absl::Hours(1), wanted);
      if (absl::IsDeadlineExceeded(fetched.status())) continue;
      if (!fetched.ok()) return fetched.status();
      if (!worker_->report().exact) {
        Say(absl::StrCat("version ", *fetched, " is approximate, and not archived"));
        wanted = *fetched + 1;
        continue;
      }
      const absl::Time begin = SteadyNow();
      const absl::StatusOr<bool> whole = Write(*fetched);
      wanted = *fetched + (whole.ok() ? options_.every : 1);
      if (!whole.ok()) {
        // The next version may find room, and the job goes on without this one.
        std::cerr << "waybill: archive version " << *fetched << ": " << whole.status().message()
                  << "; the next version is tried" << std::endl;
        continue;
      }
      Say(absl::StrFormat("version %d: %.1f MB in %.3f s%s", *fetched,
                          static_cast<double>(memory_.size()) / 1e6,
                          absl::ToDoubleSeconds(SteadyNow() - begin),
                          *whole ? absl::StrCat(", whole in ", archive_.FolderOf(*fetched)) : ""));
    }
  }

 private:
  const std::vector<CheckpointTensor>& part() const { return parts_[options_.rank.identity.rank]; }
  void Say(const std::string& text) const {
    std::cout << "archive " << options_.rank.identity.rank << ": " << text << std::endl;
  }

  // Gives each tensor of this rank's part its place in memory.
  Manifest MakeRoom() {
    constexpr uint64_t kAlignment = 256;
    Manifest manifest;
    manifest.set_rack(options_.rank.rack);
    std::vector<CheckpointTensor>& mine = parts_[options_.rank.identity.rank];
    uint64_t size = 0;
    for (const CheckpointTensor& tensor : mine) size += RoundUp(tensor.size_bytes(), kAlignment);
    memory_.resize(size);
    manifest.AddRegion("archive", size);
    uint64_t at = 0;
    for (CheckpointTensor& tensor : mine) {
      const uint64_t end = at + tensor.size_bytes(), next = RoundUp(end, kAlignment);
      tensor.data = absl::MakeConstSpan(memory_).subspan(at, end - at);
      std::vector<int64_t> strides(tensor.shape.size());
      RowMajorStrides(tensor.shape, absl::MakeSpan(strides));
      manifest.AddShard(manifest.AddTensor(tensor.name, tensor.shape, tensor.dtype), {tensor.dtype},
                        Box::Whole(tensor.shape), {0, at, strides});
      if (next > end) {
        manifest.AddPadding(1, {static_cast<int64_t>(next - end)}, {0, end, {1}});
      }
      at = next;
    }
    return manifest;
  }

  absl::StatusOr<bool> Write(uint64_t version) {
    WAYBILL_ASSIGN_OR_RETURN(const Snapshot snapshot, worker_->TakeSnapshot("the archive"));
    WAYBILL_ASSIGN_OR_RETURN(const bool whole,
                             archive_.Write(version, options_.rank.identity.rank, parts_));
    if (whole) WAYBILL_RETURN_IF_ERROR(archive_.Keep(options_.keep));
    return whole;
  }

  const Options options_;
  const Archive archive_;
  std::vector<std::vector<CheckpointTensor>> parts_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Worker> worker_;  // Ends before its memory.
};

absl::Status RunArchive(const Options& options) {
  WAYBILL_ASSIGN_OR_RETURN(Archive archive, Archive::Open(options.folder, options.rank.checkpoint));
  // Nobody gets a version, and so nobody writes, before all ranks have joined.
  if (options.rank.identity.rank == 0) WAYBILL_RETURN_IF_ERROR(archive.RemoveUnfinished());
  Archivist archivist(options, std::move(archive));
  WAYBILL_RETURN_IF_ERROR(archivist.Join());
  return archivist.Serve();
}

}  // namespace

void AddArchiveCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  options->rank.identity.group = "archive";
  options->rank.identity.fetches = true;
  CLI::App* command = app.add_subcommand(
      "archive",
      "Write versions into a folder as safetensors, each whole or not at all, while the job goes "
      "on.\nBegin again with the newest: waybill trainer --rank 0 --world 1 --checkpoint "
      "FOLDER/newest");
  command
      ->add_option("folder", options->folder,
                   "gets a folder for each version, and a link \"newest\" to the newest")
      ->required();
  options->rank.AddTo(*command);
  command->get_option("--rank")->required(false);
  command->get_option("--world")->required(false);
  command->get_option("--checkpoint")
      ->required(false)
      ->description(
          "a Hugging Face folder whose files without weights (config.json, the tokenizer) go into "
          "each version, so that transformers can load it");
  command
      ->add_option("--group", options->rank.identity.group,
                   "name of the group whose workers write one part each")
      ->capture_default_str();
  command->add_option("--every", options->every, "archive a version if so many came since the last")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--keep", options->keep, "keep so many versions, the newest; 0: all")
      ->capture_default_str();
  command->callback([options, &run] { run = [options] { return RunArchive(*options); }; });
}

}  // namespace waybill
