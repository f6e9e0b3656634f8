// SPDX-License-Identifier: Apache-2.0

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/base/trace_parent.h"
#include "core/control/ask_controller.h"
#include "core/control/trainer.h"
#include "core/layout/checkpoint.h"
#include "core/layout/load_shards.h"
#include "core/layout/trainer_layout.h"
#include "core/protocol/timeouts.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/driven_process/driven.h"
#include "tools/waybill/observe/process_usage.h"
#include "tools/waybill/rank/change_weights.h"
#include "tools/waybill/rank/rank_options.h"

namespace waybill {
namespace {

struct Options {
  RankOptions rank;
  uint64_t version = 0;
  double timeout_seconds = absl::ToDoubleSeconds(kPublishTimeout);
  bool no_digests = false;
  bool fail_on_nonfinite = false;
  bool hold_commit = false;
  std::string traceparent;
  uint64_t ring_mib = 32;
  uint32_t threads = 1;
  bool images = false;
  std::string changes = "never";
};

Changes ParseChanges(const std::string& text) {
  for (const Changes changes : {Changes::kAuto, Changes::kAlways}) {
    if (Name(changes) == text) return changes;
  }
  return Changes::kNever;
}

class TrainerProcess {
 public:
  explicit TrainerProcess(const Options& options) : options_(options) {}

  absl::Status Join() {
    version_ = options_.version;
    if (!options_.traceparent.empty()) {
      WAYBILL_RETURN_IF_ERROR(ParseTraceParent(options_.traceparent).status());
    }
    if (version_ == 0 && !options_.rank.driven) WAYBILL_RETURN_IF_ERROR(FindVersion());
    WAYBILL_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                             Checkpoint::Open(options_.rank.checkpoint));
    WAYBILL_ASSIGN_OR_RETURN(const TrainerSharding sharding,
                             TrainerSharding::Parse(ShardingOr(options_.rank, "fsdp")));
    const RankIdentity identity = options_.rank.identity;
    if (sharding.world() != identity.world) {
      return absl::InvalidArgumentError(absl::StrCat("--sharding ", options_.rank.sharding, " is ",
                                                     sharding.world(), " ranks, --world is ",
                                                     identity.world));
    }
    WAYBILL_ASSIGN_OR_RETURN(
        manifest_,
        MakeTrainerManifest(checkpoint.tensors(), checkpoint.config(), sharding, identity.rank));
    manifest_.set_rack(options_.rank.rack);
    weights_.resize(manifest_.region_count() == 0 ? 0 : manifest_.region_bytes(0));
    WAYBILL_RETURN_IF_ERROR(LoadShards(checkpoint, manifest_, absl::MakeSpan(weights_)));
    WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                             options_.rank.fabric.Make(options_.rank.identity.controller));
    const TrainerOptions trainer{.identity = identity,
                                 .engine = {.ring_bytes = options_.ring_mib << 20,
                                            .stage_threads = options_.threads,
                                            .images = options_.images,
                                            .changes = ParseChanges(options_.changes)},
                                 .join_timeout = options_.rank.join_timeout()};
    WAYBILL_ASSIGN_OR_RETURN(
        trainer_,
        Trainer::Join(trainer, manifest_, {{MemoryKind::kHost, weights_.data(), weights_.size()}},
                      std::move(fabric)));
    return absl::OkStatus();
  }

  absl::Status PublishOnce() {
    const uint64_t version = version_;
    const absl::Time begin = SteadyNow();
    WAYBILL_RETURN_IF_ERROR(trainer_->Publish(version, publish_options()));
    const absl::Duration sent = SteadyNow() - begin;
    if (options_.hold_commit) WAYBILL_RETURN_IF_ERROR(AskToCommit());
    WAYBILL_RETURN_IF_ERROR(AwaitCommitted());
    std::cout << absl::StrFormat(
        "trainer %d: version %d: %.1f MB sent in %.3f s, shown by all after %.3f s\n",
        options_.rank.identity.rank, version,
        static_cast<double>(trainer_->report().counts.bytes) / 1e6, absl::ToDoubleSeconds(sent),
        absl::ToDoubleSeconds(SteadyNow() - begin));
    return absl::OkStatus();
  }

  void Drive() {
    Tell({{"event", "joined"},
          {"lanes", PathsOf(trainer_->report().lanes)},
          {"weight_bytes", weights_.size()},
          {"tensors", manifest_.tensor_count()}});
    while (const std::optional<DrivenCommand> command = ReadCommand()) {
      if (command->verb == "change") {
        ChangeWeights(manifest_, absl::MakeSpan(weights_), {version_, options_.rank.changed},
                      {command->number(), options_.rank.changed});
        version_ = command->number();
        Tell({{"event", "changed"}});
      } else if (command->verb == "publish") {
        Publish(command->number());
      }
    }
  }

 private:
  // All trainers find the same version, because none of them can publish before all have joined.
  absl::Status FindVersion() {
    constexpr absl::Duration kPause = absl::Milliseconds(100);
    const absl::Time deadline = SteadyNow() + options_.rank.join_timeout();
    absl::StatusOr<proto::StatusReply> status;
    while (true) {
      status = FetchStatus(options_.rank.identity.controller, options_.rank.identity.token,
                           absl::Seconds(5));
      if (!absl::IsUnavailable(status.status()) || SteadyNow() + kPause > deadline) break;
      absl::SleepFor(kPause);
    }
    WAYBILL_RETURN_IF_ERROR(status.status());
    version_ = status->published_version() + 1;
    return absl::OkStatus();
  }

  PublishOptions publish_options() const {
    return {.timeout = absl::Seconds(options_.timeout_seconds),
            .digests = options_.no_digests ? Digests::kOff : Digests::kOn,
            .fail_on_nonfinite = options_.fail_on_nonfinite,
            .hold_commit = options_.hold_commit,
            .traceparent = options_.traceparent};
  }

  absl::Duration outcome_timeout() const { return absl::Seconds(options_.timeout_seconds + 1); }

  // Says what a line on standard input, or its end, says; or nothing if another trainer has.
  absl::Status AskToCommit() {
    const absl::Time deadline = SteadyNow() + outcome_timeout();
    WAYBILL_RETURN_IF_ERROR(trainer_->AwaitArrived(outcome_timeout()));
    std::cout << absl::StrFormat(
                     "trainer %d: version %d has arrived and waits; Enter shows it, Ctrl-D gives "
                     "it up",
                     options_.rank.identity.rank, version_)
              << std::endl;
    constexpr absl::Duration kPause = absl::Milliseconds(100);
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    while (poll(&input, 1, 0) <= 0) {
      const bool decided = !absl::IsDeadlineExceeded(trainer_->AwaitOutcome(kPause).status());
      if (decided || SteadyNow() >= deadline) {
        return absl::OkStatus();
      }
    }
    std::string line;
    trainer_->Decide(std::getline(std::cin, line)
                         ? absl::OkStatus()
                         : absl::CancelledError("standard input has ended"));
    return absl::OkStatus();
  }

  absl::Status AwaitCommitted() {
    WAYBILL_ASSIGN_OR_RETURN(const std::vector<GroupOutcome> outcomes,
                             trainer_->AwaitOutcome(outcome_timeout()));
    for (const GroupOutcome& outcome : outcomes) {
      if (!outcome.status.ok()) return While(absl::StrCat("group ", outcome.group), outcome.status);
    }
    return absl::OkStatus();
  }

  void Publish(uint64_t version) {
    const int64_t begin = SharedClockNanos();
    const absl::Duration cpu_begin = ProcessCpu();
    absl::Status status = trainer_->Publish(version, publish_options());
    const int64_t sent = SharedClockNanos();
    if (status.ok()) status = AwaitCommitted();
    const TransferCounts counts = trainer_->report().counts;
    const ProcessMemory memory = ReadProcessMemory();
    anonymous_peak_ = std::max(anonymous_peak_, memory.anonymous_bytes);
    nlohmann::json event = EventOf("published", status);
    event["begin_ns"] = begin;
    event["sent_ns"] = sent;
    event["moving_seconds"] =
        absl::ToDoubleSeconds(trainer_->report().sent - trainer_->report().started);
    event["maxima_cpu_seconds"] = absl::ToDoubleSeconds(trainer_->report().maxima_cpu);
    event["trade_cpu_seconds"] = absl::ToDoubleSeconds(trainer_->report().trade_cpu);
    event["cpu_seconds"] = absl::ToDoubleSeconds(ProcessCpu() - cpu_begin);
    event["enqueue_seconds"] = absl::ToDoubleSeconds(trainer_->report().enqueued);
    event["bytes"] = counts.bytes;
    event["spared_bytes"] = counts.spared_bytes;
    event["writes"] = counts.writes;
    event["stores"] = counts.stores;
    event["immediates"] = counts.immediates;
    event["maxima_messages"] = counts.maxima_messages;
    event["maxima_bytes"] = counts.maxima_bytes;
    event["stages"] = StagesToJson(trainer_->report().stages);
    event["nonfinite_elements"] = 0;
    const TrainerReport report = trainer_->report();
    for (const NonFinite& found : report.nonfinite) {
      event["nonfinite_elements"] = event["nonfinite_elements"].get<uint64_t>() + found.elements;
    }
    event["ring_high_water_bytes"] = trainer_->report().ring_high_water_bytes;
    event["memory"] = {{"anonymous_peak_bytes", anonymous_peak_},
                       {"ring_bytes", options_.ring_mib << 20},
                       {"shared_bytes", memory.shared_bytes},
                       {"file_bytes", memory.file_bytes}};
    Tell(event);
  }

  const Options options_;
  Manifest manifest_;
  std::vector<std::byte> weights_;
  uint64_t version_ = 0;  // To publish, or of a driven trainer that of its weights.
  uint64_t anonymous_peak_ = 0;
  std::unique_ptr<Trainer> trainer_;
};

absl::Status RunTrainer(const Options& options) {
  TrainerProcess trainer(options);
  absl::Status joined = trainer.Join();
  if (options.rank.driven && !joined.ok()) Tell(EventOf("joined", joined));
  WAYBILL_RETURN_IF_ERROR(joined);
  if (!options.rank.driven) return trainer.PublishOnce();
  trainer.Drive();
  return absl::OkStatus();
}

}  // namespace

void AddTrainerCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "trainer", "Run one trainer, which publishes its shards of a checkpoint once");
  options->rank.AddTo(*command);
  command->add_option("--sharding", options->rank.sharding,
                      "how the trainers share the model: fsdp=2,replicas=2 or megatron,tp=2,ep=2; "
                      "default: fsdp=WORLD");
  command->add_option("--version", options->version,
                      "version to publish; default: the one after the last published version");
  command->add_option("--timeout", options->timeout_seconds, "deadline of the update, in seconds")
      ->capture_default_str();
  command->add_flag("--no-digests", options->no_digests, "do not verify what arrives");
  command->add_flag("--fail-on-nonfinite", options->fail_on_nonfinite,
                    "show nothing if NaNs or infinities are among the elements to quantise");
  command->add_flag("--hold-commit", options->hold_commit,
                    "once it has arrived everywhere, show it when a line comes on the standard "
                    "input of any trainer; all trainers need this flag");
  command
      ->add_option("--traceparent", options->traceparent,
                   "the span that the update belongs to in the controller's traces, as a W3C "
                   "traceparent; default: none, a trace of its own")
      ->envname("TRACEPARENT");
  command->add_option("--ring-mib", options->ring_mib, "size of the staging ring in MiB")
      ->capture_default_str();
  // begin generated from capi/options.toml: flags of trainer by command->
  command->add_option("--threads", options->threads, "how many threads cast and quantise")
      ->capture_default_str();
  command->add_flag("--images", options->images,
                    "send from a copy of the weights, which may change once they are copied");
  command
      ->add_option("--changes", options->changes,
                   "as --images, and send only what changed since the version before, where that "
                   "is shorter; auto: to groups that get it sooner so")
      ->capture_default_str()
      ->check(CLI::IsMember({"never", "auto", "always"}));
  // end generated
  command->callback([options, &run] { run = [options] { return RunTrainer(*options); }; });
}

}  // namespace waybill
