// SPDX-License-Identifier: Apache-2.0

// A whole job in one process: a controller and its ranks over gRPC and the local fabric, each rank
// with its own threads.
#ifndef WAYBILL_TESTING_JOB_JOB_H_
#define WAYBILL_TESTING_JOB_JOB_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/control/controller.h"
#include "core/control/trainer.h"
#include "core/control/worker.h"
#include "core/fabric/fabric.h"
#include "testing/cluster/cluster_model.h"

namespace waybill {

struct JobOptions {
  // The fabric of a rank, by its name ("trainer 0"); none: local.
  std::function<std::unique_ptr<Fabric>(const std::string& rank)> make_fabric;
  uint32_t trainers = 2;
  uint32_t replicas = 1;  // Trainers t and t + trainers / replicas hold the same.
  uint32_t workers = 2;
  std::vector<std::string> groups;            // By worker; "all" where it is shorter.
  std::shared_ptr<const ClusterModel> model;  // Null: the job's own, below.
  std::string token = "a secret of the job";
  std::string state;
  Mode mode = Mode::kShadow;
  absl::Duration join_timeout = absl::Seconds(20);
  absl::Duration absence_timeout = absl::Seconds(5);
  ControllerObserver* observer = nullptr;  // Outlives the job.
  std::set<uint32_t> fetching = {};        // The workers that fetch versions.
  std::set<std::string> required = {};     // Groups without which no version is published.
  bool relays = false;  // Each worker holds all columns, and relays some of them to the others.
};

// Its own model: one tensor of kRows x kColumns BF16, its rows over the trainers, its columns over
// the workers of each group. Element i of version v has the bits v * 1000 + i (mod 2^16).
class Job {
 public:
  static constexpr int64_t kRows = 64;
  static constexpr int64_t kColumns = 32;

  explicit Job(const JobOptions& options);

  absl::Status StartController(const std::string& listen = "127.0.0.1:0");
  void StopController() { controller_.reset(); }
  // The controller is another process's, or another job's of this process.
  void UseController(std::string address) { address_ = std::move(address); }

  // What is set in trainer_options() before counts. In threads of their own, at the same time; the
  // first error.
  absl::Status JoinAll();
  absl::Status JoinTrainer(uint32_t t);
  absl::Status JoinWorker(uint32_t w);
  // A stranger tries to be that worker.
  absl::Status JoinAs(const RankIdentity& identity);
  RankIdentity Identity(uint32_t rank, uint32_t world) const;

  // Fills all trainers' memory and publishes from all of them, in threads.
  std::vector<absl::Status> PublishAll(uint64_t version, const PublishOptions& options = {
                                                             .timeout = absl::Seconds(20)});
  void Fill(uint64_t version);
  void FillTrainer(uint32_t t, uint64_t version);
  bool Shows(uint32_t w, uint64_t version);

  Controller& controller() { return *controller_; }
  TrainerOptions& trainer_options(uint32_t t) { return trainer_options_[t]; }
  std::unique_ptr<Trainer>& trainer(uint32_t t) { return trainers_[t]; }
  std::unique_ptr<Worker>& worker(uint32_t w) { return workers_[w]; }
  // Set before JoinWorker().
  decltype(WorkerOptions::handler)& handler(uint32_t w) { return handlers_[w]; }

 private:
  std::unique_ptr<Fabric> MakeFabric(const std::string& rank) const;

  const JobOptions options_;
  const std::shared_ptr<const ClusterModel> model_;
  std::string address_;
  std::unique_ptr<Controller> controller_;
  std::vector<std::vector<std::byte>> memory_;  // Of each trainer.
  // Of each region of each worker, in shadow-copy.
  std::vector<std::vector<std::vector<std::byte>>> engine_memory_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<TrainerOptions> trainer_options_;
  std::vector<decltype(WorkerOptions::handler)> handlers_;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_JOB_JOB_H_
