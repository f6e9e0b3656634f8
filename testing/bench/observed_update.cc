// SPDX-License-Identifier: Apache-2.0

// Measures what it costs an update that somebody looks on. Two jobs of two trainers and two workers
// update the same tensor, in blocks of updates that take turns. The controller of one writes
// its log, sends a trace of each update to a collector, serves metrics that are scraped in each
// block, and a page that is read in each. Much of that is done after the update, so a job's blocks
// are of half a second, in which most of it is done.
//
//     bazel run -c opt //testing/bench:observed_update [-- --rows 65536]
#include <fcntl.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "core/base/steady_now.h"
#include "core/base/unique_fd.h"
#include "core/net/tcp_socket.h"
#include "core/tensor/manifest.h"
#include "testing/bench/http_get.h"
#include "testing/cluster/cluster_model.h"
#include "testing/job/job.h"
#include "tools/waybill/observe/collector_server.h"
#include "tools/waybill/observe/event_log.h"
#include "tools/waybill/observe/exporter.h"
#include "tools/waybill/observe/otlp.grpc.pb.h"
#include "tools/waybill/observe/span_exporter.h"
#include "tools/waybill/observe/update_watch.h"

namespace waybill {
namespace {

namespace otlp = ::opentelemetry::proto::collector::trace::v1;

// Ends the process where it is not OK.
void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::_Exit(1);
}

// Takes every trace.
class Collector final : public otlp::TraceService::Service {
  grpc::Status Export(grpc::ServerContext*, const otlp::ExportTraceServiceRequest*,
                      otlp::ExportTraceServiceResponse*) override {
    return grpc::Status::OK;
  }
};

// Reads the metrics and the page's data at once, and then each second.
class Scraper {
 public:
  explicit Scraper(const std::string& address)
      : server_(*net::ParseHostPort(address)), thread_([this] { Run(); }) {}
  ~Scraper() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      lock.unlock();
      for (const char* path : {"/metrics", "/status.json"}) Check(HttpGet(server_, path).status());
      lock.lock();
      changed_.wait_for(lock, std::chrono::seconds(1), [this] { return ended_; });
    }
  }

  const net::HostPort server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

// One tensor of `rows` x 512 BF16, of which each of two trainers and workers has half the rows.
class Rows final : public ClusterModel {
 public:
  explicit Rows(int64_t rows) : rows_(rows) {}

  Manifest Trainer(uint32_t t) const override { return Worker(t); }
  Manifest Worker(uint32_t w) const override {
    constexpr int64_t kColumns = 512;
    const Box box({w * rows_ / 2, 0}, {(w + 1) * rows_ / 2, kColumns});
    Manifest manifest;
    manifest.AddRegion("w", static_cast<uint64_t>(box.element_count()) * sizeof(uint16_t));
    manifest.AddShard(manifest.AddTensor("w", {rows_, kColumns}, Dtype::kBf16),
                      Format{Dtype::kBf16}, box, {0, 0, {kColumns, 1}});
    return manifest;
  }
  // Changes the first bytes only: updates are timed, and training is not.
  void Fill(uint64_t version, const Manifest&, std::byte* memory) const override {
    std::memcpy(memory, &version, sizeof(version));
  }
  void Expect(uint64_t, const Manifest&, std::vector<std::vector<std::byte>>&) const override {}

 private:
  const int64_t rows_;
};

std::unique_ptr<Job> Start(int64_t rows, ControllerObserver* observer) {
  auto job = std::make_unique<Job>(
      JobOptions{.model = std::make_shared<Rows>(rows), .observer = observer});
  Check(job->StartController());
  Check(job->JoinAll());
  return job;
}

double UpdateMilliseconds(Job& job, uint64_t version) {
  const absl::Time begin = SteadyNow();
  for (const absl::Status& status : job.PublishAll(version)) Check(status);
  for (uint32_t w = 0; w < 2; ++w) Check(job.worker(w)->AwaitShown(version, absl::Seconds(20)));
  return absl::ToDoubleMilliseconds(SteadyNow() - begin);
}

// The times of a job's updates, and the mean of each of its blocks.
struct Times {
  std::vector<double> updates_ms, blocks_ms;
  // Updates for half a second, from version `first` on.
  void AddBlock(Job& job, uint64_t first) {
    const absl::Time end = SteadyNow() + absl::Milliseconds(500);
    const size_t before = updates_ms.size();
    double sum = 0;
    while (SteadyNow() < end) {
      updates_ms.push_back(UpdateMilliseconds(job, first + updates_ms.size() - before));
      sum += updates_ms.back();
    }
    blocks_ms.push_back(sum / static_cast<double>(updates_ms.size() - before));
  }
};

double Quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

int Main(int argc, char** argv) {
  CLI::App app{"Measures what it costs an update that somebody looks on."};
  uint64_t blocks = 40;
  int64_t rows = 64;
  app.add_option("--blocks", blocks, "of half a second, of each job")->capture_default_str();
  app.add_option("--rows", rows, "of the tensor, of 1 KiB each")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  Collector collector;
  const CollectorServer server(&collector);
  const UniqueFd nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  EventLog log(LogFormat::kJson, "test", nowhere.get());
  SpanExporter spans(server.address(), "test", [](const absl::Status& status) { Check(status); });
  UpdateWatch watch({&log, &spans});
  const auto metrics = MetricsExporter::Start("127.0.0.1:0", "test", RankSeries::kEach, watch);
  Check(metrics.status());
  const std::unique_ptr<Job> plain = Start(rows, nullptr), observed = Start(rows, &watch);
  (*metrics)->SetController(&observed->controller());
  Times without, with;
  std::vector<double> ratios;
  for (uint64_t block = 0; block <= blocks; ++block) {
    const uint64_t first = 1 + block * 1'000'000;
    const auto observe = [&] {
      const Scraper scraper((*metrics)->address());
      with.AddBlock(*observed, first);
    };
    if (block % 2 == 0) observe();
    without.AddBlock(*plain, first);
    if (block % 2 != 0) observe();
    if (block == 0) without = with = {};  // They warm up.
    if (block != 0) ratios.push_back(with.blocks_ms.back() / without.blocks_ms.back());
  }
  (*metrics)->SetController(nullptr);
  std::cout << std::fixed << std::setprecision(3) << "ms         p50     p99\n";
  for (const auto& [name, times] : {std::pair("plain    ", without), {"observed ", with}}) {
    std::cout << name << std::setw(7) << Quantile(times.updates_ms, 0.5) << std::setw(8)
              << Quantile(times.updates_ms, 0.99) << "\n";
  }
  std::cout << "observed to plain: "
            << Quantile(with.updates_ms, 0.5) / Quantile(without.updates_ms, 0.5)
            << " of the medians; of the means of pairs of blocks " << Quantile(ratios, 0.5)
            << " (quartiles " << Quantile(ratios, 0.25) << " and " << Quantile(ratios, 0.75)
            << ")\n";
  return 0;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Main(argc, argv); }
