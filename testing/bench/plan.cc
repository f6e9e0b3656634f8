// SPDX-License-Identifier: Apache-2.0

// Plans large jobs, each beside its target.
//
//     bazel run -c opt //testing/bench:plan
//
// Prints for each job the time of planning (median of --rounds), how much of it proves the cover,
// the peak memory of a process that has the manifests and the plan, and counts that do not vary.
// Then the joining of a job at the controller, a plan without one trainer, and a curve of the time
// over the number of ranks. Every job runs in a process of its own.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "core/base/deflate.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/all_cores.h"
#include "core/layout/every_rank.h"
#include "core/layout/synthetic.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"
#include "core/plan/cover.h"
#include "core/plan/plan_codec.h"
#include "core/plan/planner.h"
#include "core/plan/rest.h"
#include "core/protocol/coordinator.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

struct Case {
  const char* name;
  const char* model;
  const char* trainers;
  const char* workers;
  double most_seconds;
  double most_mib;
  Relays relays = Relays::kNever;
};

// The shardings are in the words of core/layout/sharding.h.
const Case kCases[] = {
    {"Kimi-K2, EP 256 to EP 128", "kimi-k2", "fsdp=256,ep=256,experts=uneven", "dp=128,ep=128", 2,
     1024},
    {"Kimi-K2, EP 256 to 4 x EP 32", "kimi-k2", "fsdp=256,ep=256,experts=uneven",
     "dp=32,ep=32,replicas=4", 2, 1024},
    {"Kimi-K2, FSDP 32 x 8 to EP 128", "kimi-k2", "fsdp=32,replicas=8", "dp=128,ep=128", 2, 1024},
    {"Kimi-K2, FSDP 32 x 8 to 4 x EP 32", "kimi-k2", "fsdp=32,replicas=8", "dp=32,ep=32,replicas=4",
     2, 1024},
    {"Kimi-K2, FSDP 32 x 8 to 4 x EP 32, relayed", "kimi-k2", "fsdp=32,replicas=8",
     "dp=32,ep=32,replicas=4", 2, 1024, Relays::kAlways},
    {"Kimi-K2, Megatron PP 2, EP 8, TP 16 to EP 128", "kimi-k2",
     "megatron,tp=16,pp=2,ep=8,stages=31+30", "dp=128,ep=128", 2, 1024},
    {"Kimi-K2, Megatron PP 2, EP 8, TP 16 to 4 x EP 32", "kimi-k2",
     "megatron,tp=16,pp=2,ep=8,stages=31+30", "dp=32,ep=32,replicas=4", 2, 1024},
    {"Qwen3-235B, FSDP 16 x 8 to EP 32", "qwen3-235b-a22b", "fsdp=16,replicas=8", "dp=32,ep=32",
     0.5, 1024},
    {"48 layers of 128 experts, tp2 ep4 dp2 to tp4 ep4", "qwen3-30b-a3b",
     "megatron,tp=2,ep=4,etp=2,dp=8", "tp=4,ep=4", 0.05, 1024},
    {"1T parameters, 4096 to 4096", "kimi-k2", "megatron,tp=8,pp=8,ep=32,etp=2,dp=64",
     "dp=128,ep=128,replicas=32", 30, 8192},
};

struct Job {
  std::vector<Manifest> trainers;
  std::vector<Manifest> workers;

  std::vector<const Manifest*> Trainers() const { return PointersTo(trainers); }
  std::vector<const Manifest*> Workers() const { return PointersTo(workers); }
};

// Manifests that list the same tensors share the list, as at the controller.
class TensorLists {
 public:
  absl::StatusOr<Manifest> Share(const absl::StatusOr<Manifest>& made) {
    WAYBILL_RETURN_IF_ERROR(made.status());
    const EncodedManifest encoded = EncodeInParts(*made);
    auto list = lists_.find(encoded.tensors);
    if (list == lists_.end()) {
      WAYBILL_ASSIGN_OR_RETURN(Manifest tensors, DecodeTensors(encoded.tensors));
      list = lists_.emplace(encoded.tensors, std::move(tensors)).first;
    }
    return DecodeHoldings(encoded.holdings, list->second);
  }

 private:
  std::map<std::string, Manifest> lists_;
};

absl::StatusOr<Job> MakeJob(const Case& c) {
  WAYBILL_ASSIGN_OR_RETURN(const SyntheticModel model, MakeSyntheticModel(c.model, std::nullopt));
  WAYBILL_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config_json));
  WAYBILL_ASSIGN_OR_RETURN(const auto from, TrainerSharding::Parse(c.trainers));
  WAYBILL_ASSIGN_OR_RETURN(const auto to, WorkerSharding::Parse(c.workers));
  WAYBILL_ASSIGN_OR_RETURN(const auto tensors, FindTensors(model.tensors, config));
  WAYBILL_ASSIGN_OR_RETURN(const auto parameters, FindParameters(tensors, config, to.engine));
  Job job;
  TensorLists of_trainers, of_workers;
  WAYBILL_ASSIGN_OR_RETURN(
      job.trainers, MakeManifests(from, true, [&](uint32_t rank) {
        return of_trainers.Share(MakeTrainerManifest(tensors, config, from, rank));
      }));
  WAYBILL_ASSIGN_OR_RETURN(
      job.workers, MakeManifests(to, true, [&](uint32_t rank) -> absl::StatusOr<Manifest> {
        WAYBILL_ASSIGN_OR_RETURN(WorkerLayout layout,
                                 MakeWorkerLayout(parameters, config, to, rank));
        return of_workers.Share(std::move(layout.manifest));
      }));
  return job;
}

double SecondsOf(const std::function<void()>& what) {
  const absl::Time begin = SteadyNow();
  what();
  return absl::ToDoubleSeconds(SteadyNow() - begin);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double PeakMib() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Runs in a process of its own, so that its peak memory is that of this job alone.
void InChild(const std::function<absl::Status()>& what) {
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = what();
    if (!status.ok()) std::cout << "    " << status << "\n";
    std::cout.flush();
    _exit(status.ok() ? 0 : 1);
  }
  int ended = 0;
  waitpid(child, &ended, 0);
  if (ended != 0) std::exit(1);
}

absl::Status PlanOne(const Case& c, int rounds) {
  WAYBILL_ASSIGN_OR_RETURN(const Job job, MakeJob(c));
  const auto trainers = job.Trainers(), workers = job.Workers();
  absl::StatusOr<Plan> plan;
  std::vector<double> planning, proving;
  for (int i = 0; i < rounds; ++i) {
    planning.push_back(
        SecondsOf([&] { plan = MakePlan(trainers, workers, {.relays = c.relays}); }));
    WAYBILL_RETURN_IF_ERROR(plan.status());
    proving.push_back(SecondsOf([&] { (void)CheckCover(plan->bundles()); }));
  }
  const double seconds = Median(planning);
  std::cout << absl::StrFormat(
      "%-50s %8.3f s (%g)  proof %4.1f %%  %6.0f MiB (%.0f)  %10d routes %7d bundles  balance "
      "%.4f\n",
      c.name, seconds, c.most_seconds, 100 * Median(proving) / seconds, PeakMib(), c.most_mib,
      plan->route_count(), plan->bundles().size(), plan->balance().ratio());
  return absl::OkStatus();
}

// --- joining ---

// Counts what the controller sends. Work is done at once, on the clock.
class CountingActions : public CoordinatorActions {
 public:
  void Send(ConnectionId connection, proto::ControllerMessage message) override {
    bytes += message.ByteSizeLong();
    if (message.has_part_wanted()) asked.emplace_back(connection, message.part_wanted().name());
    plans += message.has_plan();
  }
  void Close(ConnectionId) override {}
  void Compute(Work work) override { this->work.push_back(std::move(work)); }
  void Record(uint64_t, const Decision&) override {}

  uint64_t bytes = 0;
  uint32_t plans = 0;
  std::vector<std::pair<ConnectionId, proto::PartName>> asked;
  std::vector<Work> work;
};

absl::Status JoinOne(const Case& c) {
  WAYBILL_ASSIGN_OR_RETURN(const Job job, MakeJob(c));
  CountingActions actions;
  Coordinator coordinator({.job = "bench"}, {}, &actions);
  const absl::Time now = SteadyNow();
  std::map<ConnectionId, EncodedManifest> manifests;
  uint64_t received_bytes = 0;
  double seconds = 0;
  const auto tell = [&](ConnectionId from, const proto::RankMessage& message) {
    received_bytes += message.ByteSizeLong();
    seconds += SecondsOf([&] { coordinator.OnMessage(from, message, now); });
  };
  // Answers what ranks are asked for, and does the controller's work, until nothing is left.
  const auto settle = [&] {
    while (!actions.asked.empty() || !actions.work.empty()) {
      for (const auto& [rank, name] : std::exchange(actions.asked, {})) {
        const EncodedManifest& manifest = manifests.at(rank);
        proto::RankMessage message;
        *message.mutable_part()->mutable_name() = name;
        message.mutable_part()->set_deflated(
            Deflate(static_cast<PartKind>(name.kind()) == PartKind::kTensors ? manifest.tensors
                                                                             : manifest.holdings));
        tell(rank, message);
      }
      for (const auto& work : std::exchange(actions.work, {})) {
        seconds += SecondsOf([&] { work(ForEachOnAllCores)(now); });
      }
    }
  };
  ConnectionId connection = 0;
  const auto join = [&](Role role, const std::vector<Manifest>& ranks, uint32_t rank) {
    manifests[++connection] = EncodeInParts(ranks[rank]);
    proto::RankMessage message;
    proto::Join* join = message.mutable_join();
    join->set_protocol_version(kProtocolVersion);
    join->set_job("bench");
    join->set_role(static_cast<uint32_t>(role));
    join->set_rank(rank);
    join->set_world(static_cast<uint32_t>(ranks.size()));
    join->set_incarnation(connection);
    if (role == Role::kWorker) {
      join->set_group("all");
      join->set_mode(static_cast<uint32_t>(Mode::kShadow));
    }
    tell(connection, message);
    message.Clear();
    message.mutable_manifest()->set_head(manifests[connection].head);
    tell(connection, message);
    settle();
  };
  // Returns the controller's time and bytes since the last call.
  auto spent = [&, last_seconds = 0.0, last_bytes = uint64_t{0}]() mutable {
    const uint64_t bytes = received_bytes + actions.bytes;
    return absl::StrFormat("%.3f s, %.1f MB", seconds - std::exchange(last_seconds, seconds),
                           static_cast<double>(bytes - std::exchange(last_bytes, bytes)) / 1e6);
  };
  for (uint32_t t = 0; t < job.trainers.size(); ++t) join(Role::kTrainer, job.trainers, t);
  std::cout << absl::StrFormat("%-50s %s (2 s, 50 MB) for the trainers, ", c.name, spent());
  for (uint32_t w = 0; w < job.workers.size(); ++w) join(Role::kWorker, job.workers, w);
  std::cout << spent() << " for the workers, the plan and all tables; ";
  coordinator.OnGone(1, now);
  join(Role::kTrainer, job.trainers, 0);
  std::cout << spent() << " when trainer 0 has died and joined again\n";
  if (actions.plans != 2 * (job.trainers.size() + job.workers.size())) {
    return absl::InternalError(absl::StrFormat("%d ranks got a plan", actions.plans));
  }
  return absl::OkStatus();
}

// --- without one trainer ---

absl::Status LoseOne(const Case& c) {
  WAYBILL_ASSIGN_OR_RETURN(Job job, MakeJob(c));
  WAYBILL_ASSIGN_OR_RETURN(const Plan plan, MakePlan(job.Trainers(), job.Workers()));
  job.trainers[0] = Manifest();
  std::set<RankPair> lacking;
  for (uint32_t w = 0; w < job.workers.size(); ++w) lacking.insert({0, w});
  absl::StatusOr<Plan> rest;
  const double rest_seconds =
      SecondsOf([&] { rest = PlanRest(plan, lacking, job.Trainers(), job.Workers()); });
  WAYBILL_RETURN_IF_ERROR(rest.status());
  absl::StatusOr<Plan> whole;
  const double whole_seconds = SecondsOf([&] { whole = MakePlan(job.Trainers(), job.Workers()); });
  WAYBILL_RETURN_IF_ERROR(whole.status());
  uint32_t other_senders = 0, other_workers = 0;
  for (uint32_t t = 1; t < plan.sender_count(); ++t) {
    other_senders +=
        EncodeRankPlan(whole->SenderBundles(t), {}) != EncodeRankPlan(plan.SenderBundles(t), {});
  }
  for (uint32_t w = 0; w < plan.receiver_count(); ++w) {
    other_workers += EncodeRankPlan(whole->ReceiverBundles(w), {}) !=
                     EncodeRankPlan(plan.ReceiverBundles(w), {});
  }
  std::cout << absl::StrFormat(
      "%-50s %8.3f s (0.1) for what it had not sent, %.3f s for the whole plan without it, in "
      "which "
      "%d other trainers and %d workers have other tables\n",
      c.name, rest_seconds, whole_seconds, other_senders, other_workers);
  return absl::OkStatus();
}

int Run(int argc, char** argv) {
  int rounds = 3;
  std::string only;
  CLI::App app("Plans large jobs");
  app.add_option("--rounds", rounds, "times that each job is planned")->capture_default_str();
  app.add_option("--only", only, "jobs whose name contains this");
  CLI11_PARSE(app, argc, argv);
  std::cout << sysconf(_SC_NPROCESSORS_ONLN) << " cores; targets in brackets\n\n";
  const auto wanted = [&](const Case& c) {
    return std::string(c.name).find(only) != std::string::npos;
  };
  for (const Case& c : kCases) {
    if (wanted(c)) InChild([&] { return PlanOne(c, rounds); });
  }
  std::cout << "\njoining: the time and bytes of the controller\n";
  for (const Case* c : {&kCases[0], &kCases[2]}) {
    if (wanted(*c)) InChild([&] { return JoinOne(*c); });
  }
  std::cout << "\nafter the death of trainer 0\n";
  if (wanted(kCases[2])) InChild([&] { return LoseOne(kCases[2]); });
  std::cout << "\nthe same job with more ranks\n";
  for (const int engines : {2, 4, 8, 16, 32}) {
    const std::string trainers =
        absl::StrFormat("megatron,tp=8,pp=8,ep=32,etp=2,dp=%d", std::max(8, 2 * engines));
    const std::string workers = absl::StrFormat("dp=128,ep=128,replicas=%d", engines);
    const std::string name =
        absl::StrFormat("1T parameters, %d to %d", 64 * std::max(8, 2 * engines), 128 * engines);
    const Case c = {name.c_str(), "kimi-k2", trainers.c_str(), workers.c_str(), 30, 8192};
    if (wanted(c)) InChild([&] { return PlanOne(c, 1); });
  }
  return 0;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Run(argc, argv); }
