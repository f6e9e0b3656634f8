// SPDX-License-Identifier: Apache-2.0

#include "core/control/etcd.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/steady_now.h"
#include "core/control/etcd.grpc.pb.h"
#include "core/control/grpc_deadline.h"
#include "core/control/keepalive.h"

namespace waybill {
namespace {

using etcdserverpb::KV;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

constexpr absl::string_view kScheme = "etcd://";

class Client final : public Etcd {
 public:
  Client(const std::vector<std::string>& endpoints, const std::optional<Identity>& identity) {
    const std::shared_ptr<grpc::ChannelCredentials> credentials =
        !identity ? grpc::InsecureChannelCredentials()
                  : grpc::SslCredentials({.pem_root_certs = identity->authorities,
                                          .pem_private_key = identity->private_key,
                                          .pem_cert_chain = identity->certificates});
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // As for the control channel.
    // Reconnect quickly when etcd is back. By default gRPC would wait for up to two minutes.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    // Also the time limit of an attempt to connect.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetMaxReceiveMessageSize(-1);  // All decisions come in one answer.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    for (const std::string& address : endpoints) {
      endpoints_.push_back(
          {address, KV::NewStub(grpc::CreateCustomChannel(address, credentials, arguments))});
    }
  }

  absl::StatusOr<RangeResponse> Range(const RangeRequest& request) override {
    return Call<RangeResponse>("read", &KV::Stub::Range, request);
  }
  absl::StatusOr<TxnResponse> Txn(const TxnRequest& request) override {
    return Call<TxnResponse>("write", &KV::Stub::Txn, request);
  }

 private:
  struct Endpoint {
    std::string address;
    std::unique_ptr<KV::Stub> stub;
  };

  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Call(absl::string_view operation,
                             grpc::Status (KV::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Reply*),
                             const Request& request) {
    uint32_t number = next_;
    const Endpoint& endpoint = endpoints_[number % endpoints_.size()];
    grpc::ClientContext context;
    context.set_deadline(ToGrpcDeadline(SteadyNow() + kEtcdCallTimeout));
    // A call that fails at once would not help: gRPC connects only while a call waits.
    context.set_wait_for_ready(true);
    Reply reply;
    const grpc::Status status = ((*endpoint.stub).*method)(&context, request, &reply);
    if (status.ok()) return reply;
    // If several calls fail at one endpoint, only the first moves on to the next.
    next_.compare_exchange_strong(number, number + 1);
    return absl::Status(
        static_cast<absl::StatusCode>(status.error_code()),
        absl::StrCat("etcd ", endpoint.address, ": ", operation, ": ", status.error_message()));
  }

  std::vector<Endpoint> endpoints_;
  std::atomic<uint32_t> next_ = 0;
};

}  // namespace

bool IsEtcdAddress(absl::string_view state) { return absl::StartsWith(state, kScheme); }

absl::StatusOr<std::vector<std::string>> ParseEtcdAddress(absl::string_view state) {
  std::vector<std::string> endpoints = absl::StrSplit(absl::StripPrefix(state, kScheme), ',');
  for (const std::string& endpoint : endpoints) {
    const size_t colon = endpoint.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == endpoint.size() ||
        absl::StrContains(endpoint, '/')) {
      return absl::InvalidArgumentError(absl::StrCat("state ", state, ": \"", endpoint,
                                                     "\" is not HOST:PORT; write "
                                                     "etcd://HOST:PORT[,HOST:PORT...]"));
    }
  }
  return endpoints;
}

std::unique_ptr<Etcd> Etcd::Connect(const std::vector<std::string>& endpoints,
                                    const std::optional<Identity>& identity) {
  return std::make_unique<Client>(endpoints, identity);
}

RangeRequest ReadPrefix(const std::string& prefix) {
  RangeRequest request;
  request.set_key(prefix);
  std::string end = prefix;
  ++end.back();
  request.set_range_end(end);
  return request;
}

void RequireValue(TxnRequest& request, const std::string& key, const std::string& value) {
  etcdserverpb::Compare* compare = request.add_compare();
  compare->set_target(etcdserverpb::Compare::VALUE);
  compare->set_key(key);
  compare->set_value(value);
}

void RequireRevision(TxnRequest& request, const std::string& key, int64_t revision) {
  etcdserverpb::Compare* compare = request.add_compare();
  compare->set_target(etcdserverpb::Compare::MOD);
  compare->set_key(key);
  compare->set_mod_revision(revision);
}

void AddPut(TxnRequest& request, const std::string& key, const std::string& value) {
  etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(value);
}

void AddDelete(TxnRequest& request, const std::string& key) {
  request.add_success()->mutable_request_delete_range()->set_key(key);
}

}  // namespace waybill
