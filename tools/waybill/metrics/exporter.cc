// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/metrics/exporter.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/resource.h>

#include <exception>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/base/version.h"
#include "core/net/tcp_socket.h"
#include "tools/waybill/metrics/families.h"
#include "tools/waybill/metrics/update_watch.h"
#include "tools/waybill/process_usage.h"

namespace waybill {
namespace {

using Families = std::vector<prometheus::MetricFamily>;

// The names are those that every client library of Prometheus uses.
void AddProcess(Families& families) {
  const auto add = [&](prometheus::MetricFamily family, double value) {
    AddSeries(family, {}, value);
    families.push_back(std::move(family));
  };
  const ProcessMemory memory = ReadProcessMemory();
  add(MakeGauges("process_resident_memory_bytes", "Resident memory of the controller's process."),
      static_cast<double>(memory.anonymous_bytes + memory.shared_bytes + memory.file_bytes));
  add(MakeCounters("process_cpu_seconds_total", "Processor time of the controller's process."),
      absl::ToDoubleSeconds(ProcessCpu()));
  std::error_code error;
  std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  if (!error) {
    add(MakeGauges("process_open_fds", "Open descriptors of the controller's process."),
        static_cast<double>(std::distance(begin(descriptors), end(descriptors))));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    add(MakeGauges("process_max_fds", "Descriptors that the controller's process may open."),
        static_cast<double>(limit.rlim_cur));
  }
}

// What one scrape gets. Prometheus' library calls Collect() on threads of its server.
class Page final : public prometheus::Collectable {
 public:
  Page(std::string job, RankSeries ranks) : job_(std::move(job)), ranks_(ranks) {}

  UpdateWatch& watch() { return watch_; }
  void SetController(const Controller* controller) {
    const std::lock_guard lock(mutex_);
    controller_ = controller;
  }

  Families Collect() const override {
    Families families = CollectStatus();
    for (prometheus::MetricFamily& family : watch_.Collect()) families.push_back(std::move(family));
    prometheus::MetricFamily build =
        MakeGauges("waybill_build_info", "1, with the version of Waybill and the job's name.");
    AddSeries(build, {{"version", kVersion}, {"waybill_job", job_}}, 1);
    families.push_back(std::move(build));
    AddProcess(families);
    return families;
  }

 private:
  // The lock is held while the controller is asked, so that it cannot end meanwhile.
  Families CollectStatus() const {
    const std::lock_guard lock(mutex_);
    Families families;
    if (controller_ != nullptr) {
      families = StatusFamilies(controller_->status(), ranks_, ledger_, SteadyNow());
    }
    prometheus::MetricFamily leads = MakeGauges(
        "waybill_controller_leads", "1 if this controller leads the job, 0 if it is a standby.");
    AddSeries(leads, {}, controller_ != nullptr ? 1 : 0);
    families.push_back(std::move(leads));
    return families;
  }

  const std::string job_;
  const RankSeries ranks_;
  UpdateWatch watch_;
  mutable std::mutex mutex_;
  mutable CounterLedger ledger_;
  const Controller* controller_ = nullptr;
};

class ExporterWithServer final : public MetricsExporter {
 public:
  ExporterWithServer(net::HostPort address, const std::string& job, RankSeries ranks)
      : page_(std::make_shared<Page>(job, ranks)),
        server_(net::ToString(address), /*num_threads=*/2),
        address_(std::move(address)) {
    server_.RegisterCollectable(page_);
    const std::vector<int> ports = server_.GetListeningPorts();
    if (!ports.empty()) address_.port = static_cast<uint16_t>(ports.front());
  }

  std::string address() const override { return net::ToString(address_); }
  ControllerObserver* BeginObserving() override {
    page_->watch().Forget();
    return &page_->watch();
  }
  void SetController(const Controller* controller) override { page_->SetController(controller); }

 private:
  const std::shared_ptr<Page> page_;
  prometheus::Exposer server_;
  net::HostPort address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsExporter>> MetricsExporter::Start(const std::string& address,
                                                                        const std::string& job,
                                                                        RankSeries ranks) {
  const std::string doing = absl::StrCat("serve metrics on ", address);
  const absl::StatusOr<net::HostPort> parsed = net::ParseHostPort(address);
  if (!parsed.ok()) return While("--metrics", parsed.status());
  // Prometheus' library does not say why it cannot listen, so this asks the system first.
  if (const auto listener = net::Listen(*parsed); !listener.ok()) {
    return While(doing, absl::Status(listener.status().code(),
                                     absl::StrCat(listener.status().message(),
                                                  "; give --metrics another address or port")));
  }
  try {
    return std::make_unique<ExporterWithServer>(*parsed, job, ranks);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(doing, ": ", error.what()));
  }
}

}  // namespace waybill
