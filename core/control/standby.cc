// SPDX-License-Identifier: Apache-2.0

#include "core/control/standby.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/credentials.h"
#include "core/control/doorkeeper.h"
#include "core/control/grpc_deadline.h"

namespace waybill {
namespace {

class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const std::string& why) {
    Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, why));
  }
  void OnDone() noexcept override { delete this; }
};

class Server final : public Standby, private grpc::CallbackGenericService {
 public:
  explicit Server(std::string job) : job_(std::move(job)) {}
  ~Server() override {
    doorkeeper_.reset();
    if (server_ != nullptr) server_->Shutdown(ToGrpcDeadline(SteadyNow()));
  }

  absl::Status Listen(const std::string& address, const std::string& token) {
    WAYBILL_ASSIGN_OR_RETURN(const ServerIdentity identity, ServerIdentity::Of(token));
    WAYBILL_RETURN_IF_ERROR(CheckJob(identity.rights(), job_));
    WAYBILL_ASSIGN_OR_RETURN(doorkeeper_, Doorkeeper::Listen(address, {}));
    grpc::ServerBuilder builder;
    std::unique_ptr<Doorkeeper::Acceptor> acceptor =
        builder.experimental().AddExternalConnectionAcceptor(
            grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
            identity.credentials());
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC starts no server");
    doorkeeper_->Start(std::move(acceptor));
    return absl::OkStatus();
  }

  void SetLeader(const std::string& address) override {
    const std::lock_guard lock(mutex_);
    leader_ = address;
  }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext*) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::string who =
        leader_.empty() ? "nobody leads yet" : absl::StrCat("the leader is ", leader_);
    // Its own until OnDone().
    return std::make_unique<Refusal>(
               absl::StrCat(kStandbyMark, "of job \"", job_, "\"; ", who,
                            "; give ranks and commands the addresses of all controllers"))
        .release();
  }

  const std::string job_;
  std::mutex mutex_;
  std::string leader_;  // Guarded by mutex_.
  std::unique_ptr<Doorkeeper> doorkeeper_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Standby>> Standby::Start(const std::string& address,
                                                        const std::string& token,
                                                        const std::string& job) {
  auto server = std::make_unique<Server>(job);
  WAYBILL_RETURN_IF_ERROR(While("a standby", server->Listen(address, token)));
  return server;
}

}  // namespace waybill
