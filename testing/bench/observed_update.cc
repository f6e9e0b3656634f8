// SPDX-License-Identifier: Apache-2.0

// Measures what it costs an update that somebody looks on. Two jobs of two trainers and two workers
// update the same small tensor in turn. The controller of one writes its log, sends a trace of
// each update to a collector, serves metrics that are scraped each second, and a page that is read
// each second.
//
//     bazel run -c opt //testing/bench:observed_update [-- --updates 2000]
#include <fcntl.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
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
#include "testing/bench/http_get.h"
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

// Reads the metrics and the page's data each second.
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

std::unique_ptr<Job> Start(ControllerObserver* observer) {
  auto job = std::make_unique<Job>(JobOptions{.observer = observer});
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

double Quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

int Main(int argc, char** argv) {
  CLI::App app{"Measures what it costs an update that somebody looks on."};
  uint64_t updates = 2000;
  app.add_option("--updates", updates, "of each job")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  Collector collector;
  const CollectorServer server(&collector);
  const UniqueFd nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  EventLog log(LogFormat::kJson, "test", nowhere.get());
  SpanExporter spans(server.address(), "test", [](const absl::Status& status) { Check(status); });
  UpdateWatch watch({&log, &spans});
  const auto metrics = MetricsExporter::Start("127.0.0.1:0", "test", RankSeries::kEach, watch);
  Check(metrics.status());
  const std::unique_ptr<Job> plain = Start(nullptr), observed = Start(&watch);
  (*metrics)->SetController(&observed->controller());
  std::vector<double> plain_ms, observed_ms, ratios;
  {
    const Scraper scraper((*metrics)->address());
    constexpr uint64_t kWarm = 20;
    for (uint64_t version = 1; version <= kWarm + updates; ++version) {
      const double without = UpdateMilliseconds(*plain, version);
      const double with = UpdateMilliseconds(*observed, version);
      if (version <= kWarm) continue;
      plain_ms.push_back(without);
      observed_ms.push_back(with);
      ratios.push_back(with / without);
    }
  }
  (*metrics)->SetController(nullptr);
  std::cout << std::fixed << std::setprecision(3) << "ms         p50     p99\n";
  for (const auto& [name, times] : {std::pair("plain    ", plain_ms), {"observed ", observed_ms}}) {
    std::cout << name << std::setw(7) << Quantile(times, 0.5) << std::setw(8)
              << Quantile(times, 0.99) << "\n";
  }
  std::cout << "observed to plain: " << Quantile(observed_ms, 0.5) / Quantile(plain_ms, 0.5)
            << " of the medians, " << Quantile(ratios, 0.5) << " the median of pairs\n";
  return 0;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Main(argc, argv); }
