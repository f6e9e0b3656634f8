// SPDX-License-Identifier: Apache-2.0

// Spans of updates, as a collector gets them by gRPC.

#include "tools/waybill/observe/span_exporter.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/waybill/observe/collector_server.h"
#include "tools/waybill/observe/otlp.grpc.pb.h"
#include "tools/waybill/observe/otlp.pb.h"

namespace waybill {
namespace {

namespace otlp = ::opentelemetry::proto::collector::trace::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Keeps the traces that it gets, or refuses them.
class Collector final : public otlp::TraceService::Service {
 public:
  std::string address() const { return server_.address(); }
  void Refuse(bool refuses) {
    const std::lock_guard lock(mutex_);
    refuses_ = refuses;
  }
  // Waits until so many traces have come, and returns those that were taken.
  std::vector<otlp::ResourceSpans> Await(size_t traces) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return traces_ >= traces; });
    return taken_;
  }
  size_t calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  grpc::Status Export(grpc::ServerContext*, const otlp::ExportTraceServiceRequest* request,
                      otlp::ExportTraceServiceResponse*) override {
    std::vector<otlp::ResourceSpans> traces;
    std::string id;
    for (const otlp::Span& span : request->resource_spans(0).scope_spans(0).spans()) {
      if (std::exchange(id, span.trace_id()) != span.trace_id()) {
        traces.push_back(request->resource_spans(0));
        traces.back().mutable_scope_spans(0)->clear_spans();
      }
      *traces.back().mutable_scope_spans(0)->add_spans() = span;
    }
    const std::lock_guard lock(mutex_);
    ++calls_;
    traces_ += traces.size();
    changed_.notify_all();
    if (refuses_) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many spans"};
    taken_.insert(taken_.end(), traces.begin(), traces.end());
    return grpc::Status::OK;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<otlp::ResourceSpans> taken_;
  size_t traces_ = 0, calls_ = 0;
  bool refuses_ = false;
  CollectorServer server_{this};  // Ends first: its threads use the others.
};

void Ignore(const absl::Status&) {}

UpdateWatch::Progress Update(const std::string& group, uint64_t version) {
  return {.group = group,
          .version = version,
          .workers = 1,
          .parts = {{"wait", absl::Milliseconds(100)}, {"transfer", absl::Milliseconds(900)}},
          .total = absl::Seconds(1)};
}

proto::RankReport Report(uint64_t version) {
  proto::RankReport report;
  report.set_version(version);
  report.set_moved_bytes(4096);
  const auto add = [&](const char* name, int64_t begin_us, int64_t end_us) {
    proto::StageTime* stage = report.add_stages();
    stage->set_name(name);
    stage->set_begin_us(begin_us);
    stage->set_end_us(end_us);
  };
  add("stage", 0, 3000);
  add("post", 1000, 5000);
  return report;
}

std::map<std::string, std::string> Attributes(
    const google::protobuf::RepeatedPtrField<otlp::KeyValue>& attributes) {
  std::map<std::string, std::string> all;
  for (const otlp::KeyValue& one : attributes) {
    all[one.key()] = one.value().has_int_value() ? absl::StrCat(one.value().int_value())
                                                 : one.value().string_value();
  }
  return all;
}

std::vector<std::string> ChildrenOf(const otlp::ResourceSpans& trace, const otlp::Span& parent) {
  std::vector<std::string> names;
  for (const otlp::Span& span : trace.scope_spans(0).spans()) {
    if (span.parent_span_id() == parent.span_id()) names.push_back(span.name());
  }
  return names;
}

const otlp::Span& SpanNamed(const otlp::ResourceSpans& trace, const std::string& name) {
  for (const otlp::Span& span : trace.scope_spans(0).spans()) {
    if (span.name() == name) return span;
  }
  ADD_FAILURE() << "no span " << name;
  return trace.scope_spans(0).spans(0);
}

uint64_t Nanoseconds(const otlp::Span& span) {
  return span.end_time_unix_nano() - span.start_time_unix_nano();
}

TEST(SpanExporter, AnUpdateIsATraceOfItsPartsRanksAndTheirStages) {
  Collector collector;
  SpanExporter exporter(collector.address(), "rl", Ignore, absl::ZeroDuration());
  exporter.OnReported({"trainer 0", ""}, Report(7));
  exporter.OnReported({"worker 0", "rollout"}, Report(7));
  exporter.OnReported({"worker 0", "eval"}, Report(7));
  exporter.OnReported({"worker 0", "rollout"}, Report(6));
  exporter.OnUpdateEnded(Update("rollout", 7));
  const otlp::ResourceSpans trace = collector.Await(1).at(0);

  EXPECT_THAT(
      Attributes(trace.resource().attributes()),
      UnorderedElementsAre(std::pair("service.name", "waybill"), std::pair("waybill.job", "rl")));
  const otlp::Span& root = trace.scope_spans(0).spans(0);
  EXPECT_EQ(root.name(), "update");
  EXPECT_EQ(root.parent_span_id(), "");
  EXPECT_EQ(root.status().code(), 0);
  EXPECT_THAT(
      Attributes(root.attributes()),
      UnorderedElementsAre(std::pair("waybill.group", "rollout"), std::pair("waybill.version", "7"),
                           std::pair("waybill.workers", "1")));
  EXPECT_THAT(ChildrenOf(trace, root), ElementsAre("wait", "transfer", "trainer 0", "worker 0"));
  EXPECT_THAT(ChildrenOf(trace, SpanNamed(trace, "worker 0")), ElementsAre("stage", "post"));

  std::set<std::string> ids;
  for (const otlp::Span& span : trace.scope_spans(0).spans()) {
    EXPECT_EQ(span.trace_id(), root.trace_id());
    EXPECT_EQ(span.trace_id().size(), 16u);
    EXPECT_EQ(span.span_id().size(), 8u);
    EXPECT_TRUE(ids.insert(span.span_id()).second);
    EXPECT_GE(span.start_time_unix_nano(), root.start_time_unix_nano());
    EXPECT_LE(span.end_time_unix_nano(), root.end_time_unix_nano());
  }
  EXPECT_EQ(Nanoseconds(root), 1'000'000'000u);
  EXPECT_EQ(Nanoseconds(SpanNamed(trace, "wait")), 100'000'000u);
  EXPECT_EQ(SpanNamed(trace, "transfer").start_time_unix_nano(),
            SpanNamed(trace, "wait").end_time_unix_nano());
  EXPECT_EQ(Nanoseconds(SpanNamed(trace, "trainer 0")), 5'000'000u);
  EXPECT_EQ(Nanoseconds(SpanNamed(trace, "post")), 4'000'000u);
}

TEST(SpanExporter, GroupsOfOneVersionHaveTracesOfTheirOwnWithTheSameTrainers) {
  Collector collector;
  SpanExporter exporter(collector.address(), "rl", Ignore, absl::ZeroDuration());
  exporter.OnReported({"trainer 0", ""}, Report(7));
  exporter.OnReported({"worker 1", "b"}, Report(7));
  exporter.OnUpdateEnded(Update("a", 7));
  exporter.OnUpdateEnded(Update("b", 7));
  const std::vector<otlp::ResourceSpans> traces = collector.Await(2);
  const otlp::Span& first = traces.at(0).scope_spans(0).spans(0);
  const otlp::Span& second = traces.at(1).scope_spans(0).spans(0);
  EXPECT_NE(first.trace_id(), second.trace_id());
  EXPECT_THAT(ChildrenOf(traces[0], first), ElementsAre("wait", "transfer", "trainer 0"));
  EXPECT_THAT(ChildrenOf(traces[1], second),
              ElementsAre("wait", "transfer", "trainer 0", "worker 1"));
}

TEST(SpanExporter, AnUpdateContinuesTheTraceOfATrainersSpan) {
  Collector collector;
  SpanExporter exporter(collector.address(), "rl", Ignore, absl::ZeroDuration());
  UpdateWatch::Progress update = Update("a", 7);
  update.parent = {std::string(15, 0) + "t", std::string(7, 0) + "s", /*sampled=*/true};
  exporter.OnUpdateEnded(update);
  const otlp::ResourceSpans trace = collector.Await(1).at(0);
  const otlp::Span& root = trace.scope_spans(0).spans(0);
  EXPECT_EQ(root.parent_span_id(), update.parent->span_id);
  EXPECT_NE(root.span_id(), update.parent->span_id);
  for (const otlp::Span& span : trace.scope_spans(0).spans()) {
    EXPECT_EQ(span.trace_id(), update.parent->trace_id);
  }
  EXPECT_THAT(ChildrenOf(trace, root), ElementsAre("wait", "transfer"));
}

TEST(SpanExporter, AnUpdateOfATraceThatIsNotSampledIsNotSent) {
  Collector collector;
  SpanExporter exporter(collector.address(), "rl", Ignore, absl::ZeroDuration());
  UpdateWatch::Progress update = Update("a", 7);
  update.parent = {std::string(16, 't'), std::string(8, 's'), /*sampled=*/false};
  exporter.OnUpdateEnded(update);
  exporter.OnUpdateEnded(Update("a", 8));
  const std::vector<otlp::ResourceSpans> traces = collector.Await(1);
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(Attributes(traces[0].scope_spans(0).spans(0).attributes()).at("waybill.version"), "8");
}

TEST(SpanExporter, UpdatesThatEndTogetherAreSentTogether) {
  Collector collector;
  {
    SpanExporter exporter(collector.address(), "rl", Ignore, absl::Hours(1));
    for (uint64_t version = 1; version <= 3; ++version)
      exporter.OnUpdateEnded(Update("a", version));
  }
  EXPECT_EQ(collector.Await(3).size(), 3u);
  EXPECT_EQ(collector.calls(), 1u);
}

TEST(SpanExporter, ManyUpdatesDoNotWaitAndACallIsBounded) {
  Collector collector;
  SpanExporter exporter(collector.address(), "rl", Ignore, absl::Hours(1));
  for (uint64_t version = 1; version <= 64; ++version) {
    for (size_t rank = 0; rank < 100; ++rank) exporter.OnReported({"trainer", ""}, Report(version));
    exporter.OnUpdateEnded(Update("a", version));
  }
  EXPECT_EQ(collector.Await(20).size(), 20u);
  EXPECT_EQ(collector.calls(), 1u);
}

TEST(SpanExporter, AFailedUpdateIsAnErrorAndNamesAreData) {
  Collector collector;
  SpanExporter exporter(collector.address(), "rl", Ignore, absl::ZeroDuration());
  UpdateWatch::Progress failed = Update("a\x1b\xff", 7);
  failed.error = "worker 0 was lost";
  exporter.OnUpdateEnded(failed);
  const otlp::ResourceSpans trace = collector.Await(1).at(0);
  const otlp::Span& root = trace.scope_spans(0).spans(0);
  EXPECT_EQ(root.status().code(), 2);
  EXPECT_EQ(root.status().message(), "worker 0 was lost");
  EXPECT_EQ(Attributes(root.attributes()).at("waybill.group"), "a\\x1b\\xff");
}

TEST(SpanExporter, ACollectorInTroubleIsToldOfOnceAndSoIsWhatWasLost) {
  std::vector<std::string> warnings;
  Collector collector;
  {
    const auto warn = [&](const absl::Status& status) { warnings.emplace_back(status.message()); };
    SpanExporter exporter(collector.address(), "rl", warn, absl::ZeroDuration());
    collector.Refuse(true);
    exporter.OnUpdateEnded(Update("a", 1));
    exporter.OnUpdateEnded(Update("a", 2));
    (void)collector.Await(2);
    collector.Refuse(false);
    exporter.OnUpdateEnded(Update("a", 3));
    exporter.OnUpdateEnded(Update("a", 4));
    (void)collector.Await(4);
  }
  EXPECT_THAT(warnings,
              ElementsAre(absl::StrCat("send spans to ", collector.address(), ": too many spans"),
                          "the spans of 2 updates were not sent"));
}

TEST(SpanExporter, WithoutACollectorNobodyWaits) {
  std::string address;
  {
    const Collector gone;
    address = gone.address();
  }
  std::vector<std::string> warnings;
  {
    SpanExporter exporter(address, "rl", [&](const absl::Status& status) {
      warnings.emplace_back(status.message());
    });
    for (uint64_t version = 1; version < 1000; ++version) {
      exporter.OnUpdateEnded(Update("a", version));
    }
  }
  ASSERT_FALSE(warnings.empty());
  EXPECT_THAT(warnings[0], HasSubstr(absl::StrCat("send spans to ", address)));
}

}  // namespace
}  // namespace waybill
