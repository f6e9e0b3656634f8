// SPDX-License-Identifier: Apache-2.0

// Measures the pure coordinator: the processor time that a job's messages take it, by the number of
// ranks and groups. The ranks are played: they answer what they are told at once. Planning, and the
// making of tables, are not counted.
//
//     bazel run -c opt //testing/bench:coordinator -- --shapes 64/8,8192/1024
#include "core/protocol/coordinator.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/deflate.h"
#include "core/base/steady_now.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

// How many elements each trainer holds.
constexpr int64_t kColumns = 8;

// A job whose ranks answer each message as ranks do that have nothing to wait for.
class PlayedJob final : public CoordinatorActions {
 public:
  PlayedJob(uint32_t trainers, uint32_t groups, uint32_t workers_of_group)
      : trainers_(trainers), groups_(groups), workers_of_group_(workers_of_group) {
    coordinator_ =
        std::make_unique<Coordinator>(CoordinatorOptions{.job = "bench", .relays = Relays::kNever},
                                      std::vector<Decision>(), this);
  }

  uint32_t rank_count() const { return trainers_ + groups_ * workers_of_group_; }

  void JoinAll() {
    const EncodedManifest wanted = EncodeInParts(ManifestOf(0, trainers_));
    for (uint32_t g = 0; g < groups_; ++g) {
      for (uint32_t w = 0; w < workers_of_group_; ++w) {
        ranks_.push_back({Role::kWorker, w, absl::StrCat("group", g)});
        Join(wanted, workers_of_group_);
      }
    }
    for (uint32_t t = 0; t < trainers_; ++t) {
      ranks_.push_back({Role::kTrainer, t});
      Join(EncodeInParts(ManifestOf(t, t + 1)), trainers_);
    }
    Run();
  }

  // Publishes a version, and returns how many groups have shown it as the trainers know it.
  uint64_t Publish(uint64_t version) {
    const uint64_t before = outcomes_;
    for (uint32_t t = 0; t < trainers_; ++t) {
      proto::RankMessage message;
      message.mutable_publish()->set_version(version);
      Hear(rank_count() - trainers_ + t, std::move(message));
    }
    Run();
    return (outcomes_ - before) / trainers_;
  }

  // The messages that the coordinator has got and sent, and the time that it has taken for them.
  uint64_t received() const { return received_; }
  uint64_t sent() const { return sent_; }
  absl::Duration time() const { return time_; }

 private:
  Manifest ManifestOf(uint32_t first_row, uint32_t last_row) const {
    Manifest manifest;
    manifest.AddRegion("w", uint64_t{last_row - first_row} * kColumns * 2);
    manifest.AddShard(
        manifest.AddTensor("w", {static_cast<int64_t>(trainers_), kColumns}, Dtype::kBf16),
        {Dtype::kBf16}, Box({first_row, 0}, {last_row, kColumns}), {0, 0, {kColumns, 1}});
    return manifest;
  }

  void Join(EncodedManifest manifest, uint32_t world) {
    const RankId& id = ranks_.back();
    const ConnectionId connection = ranks_.size() - 1;
    proto::RankMessage join;
    join.mutable_join()->set_protocol_version(kProtocolVersion);
    join.mutable_join()->set_job("bench");
    join.mutable_join()->set_role(static_cast<uint32_t>(id.role));
    join.mutable_join()->set_rank(id.rank);
    join.mutable_join()->set_world(world);
    join.mutable_join()->set_incarnation(connection + 1);
    join.mutable_join()->set_mode(static_cast<uint32_t>(Mode::kShadow));
    join.mutable_join()->set_group(id.group);
    Hear(connection, std::move(join));
    proto::RankMessage head;
    head.mutable_manifest()->set_head(manifest.head);
    Hear(connection, std::move(head));
    manifests_.push_back(std::move(manifest));
    starts_.push_back(0);
  }

  void Hear(ConnectionId connection, proto::RankMessage message) {
    heard_.emplace_back(connection, std::move(message));
  }

  // Counts the time of something that the coordinator does. Its clock goes with every message.
  template <typename Call>
  void Measure(const Call& call) {
    const absl::Time begin = SteadyNow();
    call();
    coordinator_->next_deadline();
    time_ += SteadyNow() - begin;
  }

  void Run() {
    while (!heard_.empty() || !work_.empty() || !recording_.empty()) {
      while (!heard_.empty()) {
        const auto [connection, message] = std::move(heard_.front());
        heard_.pop_front();
        ++received_;
        Measure([&] { coordinator_->OnMessage(connection, message, SteadyNow()); });
      }
      for (const Work& work : std::exchange(work_, {})) {
        const Completion completion = work(InTurn);
        Measure([&] { completion(SteadyNow()); });
      }
      for (const uint64_t ticket : std::exchange(recording_, {})) {
        Measure([&] {
          coordinator_->OnRecorded(ticket, Recorded::kDurable, absl::OkStatus(), SteadyNow());
        });
      }
      if (heard_.empty() && work_.empty() && recording_.empty() &&
          coordinator_->next_deadline() <= SteadyNow()) {
        Measure([&] { coordinator_->OnTime(SteadyNow()); });
      }
    }
  }

  void Answer(ConnectionId connection, const proto::ControllerMessage& message) {
    proto::RankMessage answer;
    switch (message.kind_case()) {
      case proto::ControllerMessage::kPartWanted: {
        const proto::PartName& name = message.part_wanted().name();
        const EncodedManifest& manifest = manifests_[connection];
        *answer.mutable_part()->mutable_name() = name;
        answer.mutable_part()->set_deflated(
            Deflate(static_cast<PartKind>(name.kind()) == PartKind::kTensors ? manifest.tensors
                                                                             : manifest.holdings));
        break;
      }
      case proto::ControllerMessage::kPlan:
        answer.mutable_offers()->set_epoch(message.plan().epoch());
        break;
      case proto::ControllerMessage::kConnect:
        answer.mutable_connected()->set_epoch(message.connect().epoch());
        break;
      case proto::ControllerMessage::kPrepare:
        starts_[connection] = 0;
        *answer.mutable_ready()->mutable_round() = message.prepare().round();
        break;
      case proto::ControllerMessage::kStart: {
        const proto::Round& round = message.start().round();
        const std::string& group = groups_by_epoch_.at(round.epoch());
        for (const proto::Target& target : message.start().targets()) {
          const ConnectionId worker = workers_.at({Role::kWorker, target.worker(), group});
          if (++starts_[worker] < trainers_) continue;
          proto::RankMessage arrived;
          *arrived.mutable_arrived()->mutable_round() = round;
          Hear(worker, std::move(arrived));
        }
        *answer.mutable_sent()->mutable_round() = round;
        break;
      }
      case proto::ControllerMessage::kCommit:
        *answer.mutable_shown()->mutable_round() = message.commit().round();
        answer.mutable_shown()->set_version(message.commit().version());
        break;
      case proto::ControllerMessage::kOutcome:
        outcomes_ += message.outcome().committed() ? 1 : 0;
        return;
      default:
        return;
    }
    Hear(connection, std::move(answer));
  }

  // CoordinatorActions.
  void Send(ConnectionId connection, proto::ControllerMessage message) override {
    ++sent_;
    if (message.has_plan()) {
      groups_by_epoch_[message.plan().epoch()] = message.plan().group();
      workers_[ranks_[connection]] = connection;
    }
    // What the rank does is not the coordinator's time.
    const absl::Time begin = SteadyNow();
    Answer(connection, message);
    time_ -= SteadyNow() - begin;
  }
  void Close(ConnectionId connection) override {
    std::cerr << "the stream of " << ToString(ranks_[connection]) << " was closed\n";
    std::exit(1);
  }
  void Compute(Work work) override { work_.push_back(std::move(work)); }
  void Record(uint64_t ticket, const Decision& /*decision*/) override {
    recording_.push_back(ticket);
  }

  const uint32_t trainers_, groups_, workers_of_group_;
  std::vector<RankId> ranks_;  // By connection.
  std::vector<EncodedManifest> manifests_;
  std::vector<uint32_t> starts_;  // Of the worker's present update, by connection.
  std::map<RankId, ConnectionId> workers_;
  std::map<uint64_t, std::string> groups_by_epoch_;
  std::deque<std::pair<ConnectionId, proto::RankMessage>> heard_;
  std::vector<Work> work_;
  std::vector<uint64_t> recording_;
  uint64_t received_ = 0, sent_ = 0, outcomes_ = 0;
  absl::Duration time_;
  std::unique_ptr<Coordinator> coordinator_;
};

// Prints what a message takes since the last call.
class Report {
 public:
  explicit Report(const PlayedJob* job) : job_(*job) {}
  double Print(const std::string& what) {
    const uint64_t received = job_.received() - received_, sent = job_.sent() - sent_;
    const absl::Duration time = job_.time() - time_;
    const double us = absl::ToDoubleMicroseconds(time) / static_cast<double>(received + sent);
    std::cout << "  " << std::left << std::setw(8) << what << std::right << std::fixed
              << std::setprecision(1) << std::setw(10) << absl::ToDoubleMilliseconds(time)
              << " ms for " << std::setw(8) << received << " messages received and " << std::setw(8)
              << sent << " sent: " << std::setprecision(2) << us << " us each" << std::endl;
    received_ = job_.received(), sent_ = job_.sent(), time_ = job_.time();
    return us;
  }

 private:
  const PlayedJob& job_;
  uint64_t received_ = 0, sent_ = 0;
  absl::Duration time_;
};

int Main(int argc, char** argv) {
  CLI::App app{"Measures the processor time that the coordinator takes for a message."};
  std::string shapes = "64/8,1024/1,1024/64,8192/1,8192/64,8192/1024";
  uint32_t trainers = 8, updates = 5;
  app.add_option("--shapes", shapes, "ranks/groups of each job")->capture_default_str();
  app.add_option("--trainers", trainers, "of each job; the other ranks are workers")
      ->capture_default_str();
  app.add_option("--updates", updates)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (const absl::string_view shape : absl::StrSplit(shapes, ',')) {
    const std::vector<std::string> numbers = absl::StrSplit(shape, '/');
    uint32_t ranks = 0, groups = 0;
    if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &ranks) ||
        !absl::SimpleAtoi(numbers[1], &groups) || groups == 0 || ranks < trainers + groups) {
      std::cerr << "shape " << shape << ": RANKS/GROUPS, with a worker in each group\n";
      return 2;
    }
    PlayedJob job(trainers, groups, (ranks - trainers) / groups);
    std::cout << job.rank_count() << " ranks: " << trainers << " trainers, " << groups
              << " groups of " << (ranks - trainers) / groups << " workers" << std::endl;
    Report report(&job);
    job.JoinAll();
    report.Print("join");
    for (uint64_t version = 1; version <= updates; ++version) {
      if (const uint64_t shown = job.Publish(version); shown != groups) {
        std::cerr << "version " << version << " was shown by " << shown << " groups\n";
        return 1;
      }
    }
    report.Print("update");
  }
  return 0;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Main(argc, argv); }
