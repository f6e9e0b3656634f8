// SPDX-License-Identifier: Apache-2.0

// Serves a collector of traces to a SpanExporter, for tests and benchmarks.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_COLLECTOR_SERVER_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_COLLECTOR_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/waybill/observe/otlp.grpc.pb.h"

namespace waybill {

// Listens on a free port of the loopback address.
class CollectorServer {
 public:
  using Collector = opentelemetry::proto::collector::trace::v1::TraceService::Service;

  // `collector` outlives the server, which calls it on threads of its own.
  explicit CollectorServer(Collector* collector) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(collector);
    server_ = builder.BuildAndStart();
  }
  ~CollectorServer() { server_->Shutdown(); }
  CollectorServer(const CollectorServer&) = delete;
  CollectorServer& operator=(const CollectorServer&) = delete;

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_COLLECTOR_SERVER_H_
