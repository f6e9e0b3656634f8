// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/span_exporter.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/random_bits.h"
#include "core/base/steady_now.h"
#include "core/base/trace_parent.h"
#include "core/base/version.h"
#include "core/control/grpc_deadline.h"
#include "tools/waybill/command_line/printable.h"
#include "tools/waybill/observe/otlp.grpc.pb.h"
#include "tools/waybill/observe/otlp.pb.h"

namespace waybill {
namespace {

namespace otlp = ::opentelemetry::proto::collector::trace::v1;

constexpr absl::Duration kCallTimeout = absl::Seconds(5);
// How long the end of the exporter waits for the collector.
constexpr absl::Duration kPatience = absl::Seconds(1);
// The most updates and ranks whose spans are sent by one call. Collectors take 4 MiB by a call, and
// the spans of a rank take about 600 bytes.
constexpr size_t kMostOfCall = 64, kMostRanksOfCall = 2000;
// Reports are kept for so many versions. Trainers rarely publish more at a time.
constexpr size_t kMostVersions = 8;
constexpr int kInternal = 1, kError = 2;  // Span.SpanKind and Status.StatusCode.

std::string BytesOf(uint64_t bits) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(bits >> shift));
  return bytes;
}

void Add(google::protobuf::RepeatedPtrField<otlp::KeyValue>* attributes, const char* key,
         const std::string& value) {
  otlp::KeyValue* added = attributes->Add();
  added->set_key(key);
  added->mutable_value()->set_string_value(value);
}
void Add(google::protobuf::RepeatedPtrField<otlp::KeyValue>* attributes, const char* key,
         uint64_t value) {
  otlp::KeyValue* added = attributes->Add();
  added->set_key(key);
  added->mutable_value()->set_int_value(static_cast<int64_t>(value));
}

// Makes the spans of one trace.
class Trace {
 public:
  // Continues the trace of `parent`, if there is one.
  Trace(std::mt19937_64* random, const std::optional<TraceParent>& parent, otlp::ScopeSpans* spans)
      : random_(*random),
        id_(parent ? parent->trace_id : NewId() + NewId()),
        parent_id_(parent ? parent->span_id : ""),
        spans_(*spans) {}

  // `parent`: null for the span of the update.
  otlp::Span* AddSpan(const otlp::Span* parent, const std::string& name, absl::Time begin,
                      absl::Time end) {
    otlp::Span* span = spans_.add_spans();
    span->set_trace_id(id_);
    span->set_span_id(NewId());
    span->set_parent_span_id(parent == nullptr ? parent_id_ : parent->span_id());
    span->set_name(name);
    span->set_kind(kInternal);
    span->set_start_time_unix_nano(static_cast<uint64_t>(absl::ToUnixNanos(begin)));
    span->set_end_time_unix_nano(static_cast<uint64_t>(absl::ToUnixNanos(end)));
    return span;
  }

 private:
  std::string NewId() { return BytesOf(std::max<uint64_t>(random_(), 1)); }  // Not all zero.

  std::mt19937_64& random_;
  const std::string id_;
  const std::string parent_id_;  // The id of a trainer's span, or empty.
  otlp::ScopeSpans& spans_;
};

}  // namespace

class SpanExporter::Collector {
 public:
  explicit Collector(const std::string& address) : address_(address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // As for the control channel.
    stub_ = otlp::TraceService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  absl::Status Export(const otlp::ExportTraceServiceRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(ToGrpcDeadline(SteadyNow() + kCallTimeout));
    {
      const std::lock_guard lock(mutex_);
      if (cancelled_) return absl::CancelledError("the exporter ends");
      call_ = &context;
    }
    otlp::ExportTraceServiceResponse response;
    const grpc::Status status = stub_->Export(&context, request, &response);
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
    if (status.ok()) return absl::OkStatus();
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat("send spans to ", address_, ": ", status.error_message()));
  }

  // Ends the current call, and refuses later ones. On any thread.
  void Cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }

 private:
  const std::string address_;
  std::unique_ptr<otlp::TraceService::Stub> stub_;
  std::mutex mutex_;
  bool cancelled_ = false;
  grpc::ClientContext* call_ = nullptr;
};

SpanExporter::SpanExporter(const std::string& collector, std::string job, Warn warn,
                           absl::Duration gather)
    : job_(std::move(job)),
      warn_(std::move(warn)),
      gather_(gather),
      collector_(std::make_unique<Collector>(collector)),
      random_(RandomBits().value_or(std::random_device()())),
      thread_([this] { Run(); }) {}

SpanExporter::~SpanExporter() {
  {
    std::unique_lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, absl::ToChronoNanoseconds(kPatience), [this] { return ended_; });
  }
  collector_->Cancel();
  thread_.join();
}

void SpanExporter::OnReported(const UpdateWatch::Rank& rank, const proto::RankReport& report) {
  const std::lock_guard lock(mutex_);
  reports_[report.version()].push_back({rank, report, absl::Now()});
  while (reports_.size() > kMostVersions) reports_.erase(reports_.begin());
}

void SpanExporter::OnUpdateEnded(const UpdateWatch::Progress& update) {
  const std::lock_guard lock(mutex_);
  Update ended = {.progress = update, .ended = absl::Now()};
  if (const auto found = reports_.find(update.version); found != reports_.end()) {
    std::vector<Report> others;
    for (Report& report : found->second) {
      const bool own = report.rank.group == update.group;
      // Other groups' updates of the version have the same trainers.
      if (!own) others.push_back(report);
      if (own || report.rank.group.empty()) ended.reports.push_back(std::move(report));
    }
    found->second = std::move(others);
  }
  if (update.parent && !update.parent->sampled) return;  // Nobody records the rest of the trace.
  if (waiting_.size() == kMostWaiting) {
    ++lost_;
    return;
  }
  waiting_.push_back(std::move(ended));
  if (waiting_.size() == 1 || waiting_.size() == kMostOfCall) changed_.notify_all();
}

void SpanExporter::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    changed_.wait_for(lock, absl::ToChronoNanoseconds(gather_),
                      [this] { return ends_ || waiting_.size() >= kMostOfCall; });
    if (waiting_.empty()) break;
    const std::vector<Update> updates = Take();
    lock.unlock();
    Send(updates);
    lock.lock();
  }
  ended_ = true;
  changed_.notify_all();
}

std::vector<SpanExporter::Update> SpanExporter::Take() {
  std::vector<Update> taken;
  size_t ranks = 0;
  do {
    ranks += waiting_.front().reports.size();
    taken.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  } while (!waiting_.empty() && taken.size() < kMostOfCall &&
           ranks + waiting_.front().reports.size() <= kMostRanksOfCall);
  return taken;
}

void SpanExporter::Send(const std::vector<Update>& updates) {
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans* resource = request.add_resource_spans();
  Add(resource->mutable_resource()->mutable_attributes(), "service.name", "waybill");
  Add(resource->mutable_resource()->mutable_attributes(), "waybill.job", Printable(job_));
  otlp::ScopeSpans* scope = resource->add_scope_spans();
  scope->mutable_scope()->set_name("waybill");
  scope->mutable_scope()->set_version(kVersion);
  for (const Update& update : updates) AddSpans(update, scope);

  const absl::Status status = collector_->Export(request);
  uint64_t lost = 0;
  {
    const std::lock_guard lock(mutex_);
    if (status.ok()) {
      lost = std::exchange(lost_, 0);
    } else {
      lost_ += updates.size();
    }
  }
  if (!status.ok() && !std::exchange(in_trouble_, true)) warn_(status);
  if (status.ok() && lost > 0) {
    in_trouble_ = false;
    warn_(absl::DataLossError(absl::StrCat("the spans of ", lost, " updates were not sent")));
  }
}

void SpanExporter::AddSpans(const Update& update, otlp::ScopeSpans* spans) {
  const UpdateWatch::Progress& progress = update.progress;
  Trace trace(&random_, progress.parent, spans);
  const absl::Time begin = update.ended - progress.total;
  otlp::Span* root = trace.AddSpan(nullptr, "update", begin, update.ended);
  Add(root->mutable_attributes(), "waybill.group", Printable(progress.group));
  Add(root->mutable_attributes(), "waybill.version", progress.version);
  Add(root->mutable_attributes(), "waybill.workers", progress.workers);
  if (!progress.error.empty()) {
    root->mutable_status()->set_code(kError);
    root->mutable_status()->set_message(Printable(progress.error));
  }
  absl::Time at = begin;
  for (const auto& [name, duration] : progress.parts) {
    trace.AddSpan(root, name, at, at + duration);
    at += duration;
  }
  for (const Report& report : update.reports) {
    int64_t last = 0;
    for (const proto::StageTime& stage : report.report.stages()) {
      last = std::max(last, stage.end_us());
    }
    const auto time_of = [&](int64_t us) {
      return std::clamp(report.heard - absl::Microseconds(last - us), begin, update.ended);
    };
    otlp::Span* rank = trace.AddSpan(root, Printable(report.rank.name), time_of(0), time_of(last));
    Add(rank->mutable_attributes(), "waybill.bytes", report.report.moved_bytes());
    for (const proto::StageTime& stage : report.report.stages()) {
      trace.AddSpan(rank, Printable(stage.name()), time_of(stage.begin_us()),
                    time_of(stage.end_us()));
    }
  }
}

}  // namespace waybill
