// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/exporter.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>

#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/base/version.h"
#include "core/net/tcp_socket.h"
#include "tools/waybill/observe/families.h"
#include "tools/waybill/observe/http_server.h"
#include "tools/waybill/observe/live_data.h"
#include "tools/waybill/observe/process_usage.h"
#include "tools/waybill/observe/update_watch.h"
#include "tools/waybill/page/page.h"

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

class ExporterWithServer final : public MetricsExporter {
 public:
  ExporterWithServer(std::string job, RankSeries ranks, const UpdateWatch& watch)
      : job_(std::move(job)), ranks_(ranks), watch_(watch) {}

  absl::Status Listen(const net::HostPort& address) {
    const auto data = [this](bool traffic) { return JsonText(PageData(traffic)); };
    WAYBILL_ASSIGN_OR_RETURN(
        server_,
        HttpServer::Start(
            address,
            {{"/", "text/html; charset=utf-8", [this] { return MakePage(PageData(true)); }},
             {"/status.json", "application/json", [data] { return data(/*traffic=*/false); }},
             {"/traffic.json", "application/json", [data] { return data(/*traffic=*/true); }},
             // The version is that of the text format.
             {"/metrics", "text/plain; version=0.0.4; charset=utf-8",
              [this] { return prometheus::TextSerializer().Serialize(Collect()); }}}));
    return absl::OkStatus();
  }

  std::string address() const override { return server_->address(); }
  void SetController(const Controller* controller) override {
    const std::lock_guard lock(mutex_);
    controller_ = controller;
  }

 private:
  // Nothing if no controller leads here. The lock is held while the controller is asked, so that it
  // cannot end meanwhile.
  std::optional<proto::StatusReply> Status(bool traffic) const {
    const std::lock_guard lock(mutex_);
    if (controller_ == nullptr) return std::nullopt;
    proto::StatusRequest request;
    request.set_traffic(traffic);
    return controller_->status(request);
  }

  nlohmann::json PageData(bool traffic) const {
    const std::optional<proto::StatusReply> status = Status(traffic);
    return status ? LiveData(*status, watch_, SteadyNow()) : StandbyData(job_);
  }

  Families Collect() {
    Families families;
    const std::optional<proto::StatusReply> status = Status(/*traffic=*/false);
    if (status) families = StatusFamilies(*status, ranks_, ledger_, SteadyNow());
    prometheus::MetricFamily leads = MakeGauges(
        "waybill_controller_leads", "1 if this controller leads the job, 0 if it is a standby.");
    AddSeries(leads, {}, status ? 1 : 0);
    families.push_back(std::move(leads));
    for (prometheus::MetricFamily& family : watch_.Collect()) families.push_back(std::move(family));
    prometheus::MetricFamily build =
        MakeGauges("waybill_build_info", "1, with the version of Waybill and the job's name.");
    AddSeries(build, {{"version", kVersion}, {"waybill_job", job_}}, 1);
    families.push_back(std::move(build));
    AddProcess(families);
    return families;
  }

  const std::string job_;
  const RankSeries ranks_;
  const UpdateWatch& watch_;
  mutable std::mutex mutex_;
  CounterLedger ledger_;
  const Controller* controller_ = nullptr;
  std::unique_ptr<HttpServer> server_;  // Ends first: its threads use the others.
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsExporter>> MetricsExporter::Start(const std::string& address,
                                                                        const std::string& job,
                                                                        RankSeries ranks,
                                                                        const UpdateWatch& watch) {
  const std::string doing = absl::StrCat("serve metrics on ", address);
  const absl::StatusOr<net::HostPort> parsed = net::ParseHostPort(address);
  if (!parsed.ok()) return While("--metrics", parsed.status());
  auto exporter = std::make_unique<ExporterWithServer>(job, ranks, watch);
  if (const absl::Status listens = exporter->Listen(*parsed); !listens.ok()) {
    return While(doing,
                 absl::Status(listens.code(), absl::StrCat(listens.message(),
                                                           "; give --metrics another address or "
                                                           "port")));
  }
  return exporter;
}

}  // namespace waybill
