// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/demo/demo.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/fabric/shared_pages.h"
#include "core/layout/sharding.h"
#include "core/layout/synthetic.h"
#include "core/net/tcp_socket.h"
#include "kernels/memory_bound.h"
#include "tools/waybill/driven_process/child_process.h"
#include "tools/waybill/driven_process/driven.h"

namespace waybill {
namespace {

constexpr uint64_t kSeed = 1;
constexpr absl::Duration kPatience =
    absl::Minutes(5);  // With what is no update: loading, checking.

// A folder that goes with this object.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Make() {
    const char* base = std::getenv("TMPDIR");
    auto folder = std::make_unique<TemporaryFolder>();
    folder->path_ = absl::StrCat(base != nullptr ? base : "/tmp", "/waybill-demo-XXXXXX");
    if (mkdtemp(folder->path_.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat("demo: no folder ", folder->path_));
    }
    return folder;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Demo {
 public:
  Demo(const DemoOptions& options, const std::function<void(const std::string&)>& progress)
      : options_(options), progress_(progress) {}

  absl::StatusOr<DemoReport> Run() {
    WAYBILL_ASSIGN_OR_RETURN(folder_, TemporaryFolder::Make());
    WAYBILL_RETURN_IF_ERROR(FindCheckpoint());
    WAYBILL_RETURN_IF_ERROR(StartAll());
    for (uint64_t version = 1; version <= options_.versions; ++version) {
      if (absl::Status status = Update(version); !status.ok()) {
        if (!options_.kill.empty()) LookAtTheRest(version - 1);
        return status;
      }
    }
    if (!options_.dump.empty()) WAYBILL_RETURN_IF_ERROR(Dump());
    if (!options_.trace.empty()) {
      WAYBILL_RETURN_IF_ERROR(WriteTrace(options_.trace, report_.stages));
    }
    workers_.clear();
    trainers_.clear();
    controller_.reset();
    if (options_.bound) WAYBILL_RETURN_IF_ERROR(MeasureBound());
    return report_;
  }

 private:
  static std::vector<std::string> Words(const std::string& command) {
    return absl::StrSplit(command, ' ', absl::SkipEmpty());
  }

  absl::Status FindCheckpoint() {
    checkpoint_ = options_.checkpoint;
    report_.model = options_.checkpoint;
    if (!checkpoint_.empty()) return absl::OkStatus();
    report_.model = options_.model;
    if (options_.layers) absl::StrAppend(&report_.model, " (", *options_.layers, " layers)");
    progress_(absl::StrCat("making ", report_.model, " up"));
    checkpoint_ = folder_->path() + "/checkpoint";
    return WriteSyntheticCheckpoint(options_.model, options_.layers, kSeed, checkpoint_);
  }

  absl::Status StartAll() {
    WAYBILL_ASSIGN_OR_RETURN(const TrainerSharding trainers,
                             TrainerSharding::Parse(options_.trainers));
    WAYBILL_ASSIGN_OR_RETURN(const WorkerSharding workers, WorkerSharding::Parse(options_.workers));
    const std::string trainer_sharding = ToString(trainers);
    const std::string worker_sharding = ToString(workers);
    progress_(absl::StrCat("starting a controller, ", trainers.world(), " trainers (",
                           trainer_sharding, ") and ", workers.world(), " workers (",
                           worker_sharding, ")"));
    WAYBILL_ASSIGN_OR_RETURN(const std::string token, net::RandomSecret());
    setenv("WAYBILL_TOKEN", token.c_str(), 1);
    WAYBILL_ASSIGN_OR_RETURN(
        controller_,
        ChildProcess::Start(
            "controller",
            {"controller", "--driven", "--listen", options_.listen + ":0", "--job", "demo",
             "--state", folder_->path() + "/decisions", "--relays", options_.relays},
            Words(options_.wrap_trainers)));
    WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json listening,
                             controller_->Await("listening", SteadyNow() + kPatience));
    const std::vector<std::string> common = {"--driven",
                                             "--job",
                                             "demo",
                                             "--controller",
                                             listening["address"].get<std::string>(),
                                             "--checkpoint",
                                             checkpoint_,
                                             "--fabric",
                                             options_.fabric,
                                             "--changed",
                                             absl::StrCat(options_.changed)};
    const std::vector<std::string> nodes = absl::StrSplit(options_.nodes, ';', absl::SkipEmpty());
    size_t next_node = 0;
    const auto start = [&](const char* role, uint32_t rank, uint32_t world,
                           std::vector<std::string> more) {
      std::vector<std::string> arguments = {role, "--rank", absl::StrCat(rank), "--world",
                                            absl::StrCat(world)};
      arguments.insert(arguments.end(), common.begin(), common.end());
      arguments.insert(arguments.end(), more.begin(), more.end());
      if (!nodes.empty()) {
        arguments.insert(arguments.end(), {"--nics", nodes[next_node++ % nodes.size()]});
      }
      const std::string& wrapper =
          role == std::string("trainer") ? options_.wrap_trainers : options_.wrap_workers;
      return ChildProcess::Start(absl::StrCat(role, " ", rank), std::move(arguments),
                                 Words(wrapper));
    };
    for (uint32_t t = 0; t < trainers.world(); ++t) {
      std::vector<std::string> more = {"--sharding", trainer_sharding,
                                       "--timeout",  absl::StrCat(options_.timeout_seconds),
                                       "--threads",  absl::StrCat(options_.threads)};
      if (!options_.digests) more.emplace_back("--no-digests");
      if (options_.images) more.emplace_back("--images");
      more.insert(more.end(), {"--changes", options_.changes});
      WAYBILL_ASSIGN_OR_RETURN(auto child, start("trainer", t, trainers.world(), more));
      trainers_.push_back(std::move(child));
    }
    for (uint32_t w = 0; w < workers.world(); ++w) {
      std::vector<std::string> more = {"--sharding", worker_sharding,
                                       "--mode",     options_.mode,
                                       "--threads",  absl::StrCat(options_.threads)};
      if (!options_.dtype.empty()) more.insert(more.end(), {"--dtype", options_.dtype});
      if (!options_.format.empty()) more.insert(more.end(), {"--format", options_.format});
      WAYBILL_ASSIGN_OR_RETURN(auto child, start("worker", w, workers.world(), more));
      workers_.push_back(std::move(child));
    }
    WAYBILL_RETURN_IF_ERROR(CheckKill());
    report_.copy_threads = std::max(
        1u, std::min(trainers.world() * options_.threads, std::thread::hardware_concurrency()));
    return AwaitJoined();
  }

  absl::Status AwaitJoined() {
    std::vector<std::pair<ChildProcess*, DemoRank*>> missing;
    for (const bool trainer : {true, false}) {
      const auto& children = trainer ? trainers_ : workers_;
      std::vector<DemoRank>& ranks = trainer ? report_.trainers : report_.workers;
      ranks.resize(children.size());
      for (size_t i = 0; i < children.size(); ++i) {
        ranks[i].name = children[i]->name();
        missing.emplace_back(children[i].get(), &ranks[i]);
      }
    }
    // All join at once or none does: whoever fails is heard first, not whoever waits for it.
    const absl::Time deadline = SteadyNow() + kPatience;
    for (size_t i = 0; !missing.empty(); ++i) {
      const auto next = missing.begin() + static_cast<ptrdiff_t>(i % missing.size());
      const auto joined =
          next->first->Await("joined", std::min(deadline, SteadyNow() + absl::Milliseconds(20)));
      if (absl::IsDeadlineExceeded(joined.status()) && SteadyNow() < deadline) continue;
      if (!joined.ok()) {
        // The others wait for it, and would until their own deadline.
        for (const auto& [child, rank] : missing) child->Kill();
        return joined.status();
      }
      next->second->weight_bytes = (*joined)["weight_bytes"].get<uint64_t>();
      next->second->lanes = (*joined)["lanes"].get<std::vector<std::string>>();
      missing.erase(next);
    }
    return absl::OkStatus();
  }

  static absl::Status SendAll(const std::vector<std::unique_ptr<ChildProcess>>& children,
                              const std::string& command) {
    for (const auto& child : children) WAYBILL_RETURN_IF_ERROR(child->Send(command));
    return absl::OkStatus();
  }

  absl::Status Update(uint64_t version) {
    WAYBILL_RETURN_IF_ERROR(SendAll(trainers_, absl::StrCat("change ", version)));
    for (const auto& trainer : trainers_) {
      WAYBILL_RETURN_IF_ERROR(trainer->Await("changed", SteadyNow() + kPatience).status());
    }
    WAYBILL_RETURN_IF_ERROR(SendAll(trainers_, absl::StrCat("publish ", version)));
    DemoUpdate update{.version = version};
    const bool is_hurt = !options_.kill.empty() && version == options_.versions;
    if (is_hurt) KillOne();
    WAYBILL_RETURN_IF_ERROR(Measure(update));
    if (is_hurt) {
      return absl::AbortedError(
          absl::StrCat(options_.kill, " was killed after it had published version ", version));
    }
    if (options_.check) WAYBILL_RETURN_IF_ERROR(Check(update));
    report_.updates.push_back(update);
    progress_(absl::StrFormat(
        "version %d: shown by all after %.1f ms%s", version, update.seconds * 1e3,
        options_.check
            ? absl::StrFormat(", every byte right (checked in %.1f s)", update.checked_seconds)
            : ""));
    return absl::OkStatus();
  }

  absl::Status CheckKill() const {
    if (options_.kill.empty()) return absl::OkStatus();
    for (const auto* children : {&trainers_, &workers_}) {
      for (const auto& child : *children) {
        if (child->name() == options_.kill) return absl::OkStatus();
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--kill \"", options_.kill, "\": there are trainer 0 to ",
                     trainers_.size() - 1, " and worker 0 to ", workers_.size() - 1));
  }

  void KillOne() {
    for (const auto* children : {&trainers_, &workers_}) {
      for (const auto& child : *children) {
        if (child->name() == options_.kill) child->Kill();
      }
    }
  }

  // After a loss: what the workers that are left show, and whether it is right.
  void LookAtTheRest(uint64_t version) {
    for (const auto& worker : workers_) {
      if (worker->name() == options_.kill) continue;
      // The old one, or, where it was decided before the loss, the new one.
      if (IsRight(*worker, version).ok()) {
        progress_(
            absl::StrCat(worker->name(), " still shows version ", version, ", every byte right"));
        continue;
      }
      const absl::Status status = IsRight(*worker, version + 1);
      progress_(status.ok() ? absl::StrCat(worker->name(), " shows version ", version + 1,
                                           ", every byte right")
                            : std::string(status.message()));
    }
  }

  static absl::Status IsRight(ChildProcess& worker, uint64_t version) {
    WAYBILL_RETURN_IF_ERROR(worker.Send(absl::StrCat("check ", version)));
    return worker.Await("checked", SteadyNow() + kPatience).status();
  }

  absl::Status Measure(DemoUpdate& update) {
    const absl::Time deadline = SteadyNow() + absl::Seconds(options_.timeout_seconds + 5);
    std::vector<TracedStage> stages;
    int64_t begin = INT64_MAX, sent = 0, shown = 0;
    for (size_t t = 0; t < trainers_.size(); ++t) {
      WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json published,
                               trainers_[t]->Await("published", deadline));
      begin = std::min(begin, published["begin_ns"].get<int64_t>());
      sent = std::max(sent, published["sent_ns"].get<int64_t>());
      update.moving_seconds =
          std::max(update.moving_seconds, published["moving_seconds"].get<double>());
      report_.trainers[t].moved_bytes =
          published["bytes"].get<uint64_t>() - published["spared_bytes"].get<uint64_t>();
      report_.trainers[t].counts = published;
      AddStages(report_.trainers[t].name, update.version, published["stages"], stages);
    }
    for (const auto& worker : workers_) {
      WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json event, worker->Await("shown", deadline));
      shown = std::max(shown, event["shown_ns"].get<int64_t>());
    }
    for (const auto& worker : workers_) {
      WAYBILL_RETURN_IF_ERROR(worker->Send("stages"));
      WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json event, worker->Await("stages", deadline));
      AddStages(worker->name(), update.version, event["stages"], stages);
    }
    update.exposed = FindExposedTime(stages, begin, shown);
    report_.stages.insert(report_.stages.end(), stages.begin(), stages.end());
    // Also what workers relay to each other.
    report_.update_bytes = 0;
    for (const DemoRank& worker : report_.workers) report_.update_bytes += worker.weight_bytes;
    update.seconds = static_cast<double>(shown - begin) * 1e-9;
    update.sent_seconds = static_cast<double>(sent - begin) * 1e-9;
    return absl::OkStatus();
  }

  static void AddStages(const std::string& rank, uint64_t version, const nlohmann::json& spans,
                        std::vector<TracedStage>& stages) {
    for (const auto& [stage, span] : spans.items()) {
      stages.push_back({rank, version, stage, span[0].get<int64_t>(), span[1].get<int64_t>()});
    }
  }

  absl::Status Check(DemoUpdate& update) {
    const absl::Time begin = SteadyNow();
    WAYBILL_RETURN_IF_ERROR(SendAll(workers_, absl::StrCat("check ", update.version)));
    for (const auto& worker : workers_) {
      WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json checked,
                               worker->Await("checked", SteadyNow() + kPatience));
      report_.elements_checked += checked["elements"].get<uint64_t>();
    }
    update.checked_seconds = absl::ToDoubleSeconds(SteadyNow() - begin);
    return absl::OkStatus();
  }

  absl::Status Dump() {
    progress_(absl::StrCat("writing what the workers hold to ", options_.dump));
    WAYBILL_RETURN_IF_ERROR(SendAll(workers_, "dump " + options_.dump));
    for (const auto& worker : workers_) {
      WAYBILL_RETURN_IF_ERROR(worker->Await("dumped", SteadyNow() + kPatience).status());
    }
    return absl::OkStatus();
  }

  // What memcpy does here: into a touched memfd mapping, as many threads as the trainers have, best
  // of five; in this run, since machines differ from hour to hour.
  absl::Status MeasureBound() {
    progress_("measuring what memcpy does here");
    const uint64_t bytes = std::clamp<uint64_t>(report_.update_bytes, 256 << 20, 1 << 30);
    WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::Create(bytes, "copy bound"));
    const std::vector<std::byte> source(bytes, std::byte{1});
    report_.copy_bytes_per_second = kernels::MeasureCopyRate(pages.data(), source.data(), bytes,
                                                             report_.copy_threads, /*repeats=*/5);
    return absl::OkStatus();
  }

  const DemoOptions& options_;
  const std::function<void(const std::string&)>& progress_;
  std::unique_ptr<TemporaryFolder> folder_;
  std::string checkpoint_;
  std::unique_ptr<ChildProcess> controller_;
  std::vector<std::unique_ptr<ChildProcess>> trainers_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
  DemoReport report_;
};

}  // namespace

absl::StatusOr<DemoReport> RunDemo(const DemoOptions& options,
                                   const std::function<void(const std::string&)>& progress) {
  return Demo(options, progress).Run();
}

}  // namespace waybill
