#include "core/control/controller.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/control/control.grpc.pb.h"

namespace waybill {
namespace {

class Server;

// One rank's stream. Deletes itself when gRPC is done with it.
class Connection final
    : public grpc::ServerBidiReactor<proto::RankMessage, proto::ControllerMessage> {
 public:
  Connection(Server* server, ConnectionId id) : server_(server), id_(id) { StartRead(&incoming_); }

  void Send(proto::ControllerMessage message) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  // Ends the stream when everything has left.
  void Close() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (outgoing_.empty()) End();
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (!ok) outgoing_.clear();
    if (!outgoing_.empty()) outgoing_.pop_front();
    if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      End();
    }
  }
  void OnDone() override { delete this; }

 private:
  void End() {
    if (std::exchange(ended_, true)) return;
    Finish(grpc::Status::OK);
  }

  Server* const server_;
  const ConnectionId id_;
  proto::RankMessage incoming_;
  std::mutex mutex_;
  std::deque<proto::ControllerMessage> outgoing_;  // The first one is being written.
  bool closing_ = false;
  bool ended_ = false;
};

class Server final : public Controller, public proto::Controller::CallbackService, private Outbox {
 public:
  Server(const ControllerOptions& options, std::unique_ptr<DecisionLog> log)
      : log_(std::move(log)), coordinator_(options.coordinator, log_.get(), this) {}

  ~Server() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (clock_.joinable()) clock_.join();
  }

  absl::Status Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    // Without this a second server on the same port would share it silently.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("controller: cannot listen on ", address, " (in use, or not an address)"));
    }
    host_ = address.substr(0, address.rfind(':'));
    clock_ = std::thread([this] { KeepTime(); });
    return absl::OkStatus();
  }

  std::string address() const override { return absl::StrCat(host_, ":", port_); }

  proto::StatusReply status() const override {
    const std::lock_guard lock(mutex_);
    return coordinator_.Status();
  }

  grpc::ServerBidiReactor<proto::RankMessage, proto::ControllerMessage>* Attend(
      grpc::CallbackServerContext*) override {
    const std::lock_guard lock(mutex_);
    const ConnectionId id = ++last_connection_;
    connections_[id] = new Connection(this, id);  // Its own until OnDone().
    return connections_[id];
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const proto::StatusRequest* request,
                                      proto::StatusReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const std::lock_guard lock(mutex_);
    if (!coordinator_.TokenIsRight(request->token())) {
      reactor->Finish({grpc::StatusCode::UNAUTHENTICATED, "status: the token is not the job's"});
    } else {
      *reply = coordinator_.Status();
      reactor->Finish(grpc::Status::OK);
    }
    return reactor;
  }

  void OnMessage(ConnectionId id, const proto::RankMessage& message) {
    const std::lock_guard lock(mutex_);
    coordinator_.OnMessage(id, message, absl::Now());
    changed_.notify_all();
  }

  void OnGone(ConnectionId id) {
    const std::lock_guard lock(mutex_);
    coordinator_.OnGone(id, absl::Now());
    const auto connection = connections_.find(id);
    if (connection != connections_.end()) {
      connection->second->Close();
      connections_.erase(connection);
    }
    changed_.notify_all();
  }

 private:
  // Outbox; the lock is held.
  void Send(ConnectionId id, proto::ControllerMessage message) override {
    const auto connection = connections_.find(id);
    if (connection != connections_.end()) connection->second->Send(std::move(message));
  }
  void Close(ConnectionId id) override {
    const auto connection = connections_.find(id);
    if (connection != connections_.end()) connection->second->Close();
  }

  void KeepTime() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      const absl::Time next = std::min(coordinator_.next_deadline(), absl::Now() + absl::Hours(1));
      if (changed_.wait_until(lock, absl::ToChronoTime(next)) == std::cv_status::timeout) {
        coordinator_.OnTime(absl::Now());
      }
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::unique_ptr<DecisionLog> log_;
  Coordinator coordinator_;
  ConnectionId last_connection_ = 0;
  std::map<ConnectionId, Connection*> connections_;  // Those whose stream is open.
  std::thread clock_;
  std::string host_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

void Connection::OnReadDone(bool ok) {
  if (!ok) return server_->OnGone(id_);  // This may be deleted now.
  server_->OnMessage(id_, incoming_);
  StartRead(&incoming_);
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:") || absl::StartsWith(address, "unix:");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(const ControllerOptions& options) {
  if (!IsLoopback(options.listen) && options.coordinator.token.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("controller: listening on ", options.listen,
                                                   " lets others in; give a token, or listen on "
                                                   "127.0.0.1"));
  }
  std::unique_ptr<DecisionLog> log;
  if (!options.decision_log.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(log, DecisionLog::Open(options.decision_log));
  }
  auto server = std::make_unique<Server>(options, std::move(log));
  WAYBILL_RETURN_IF_ERROR(server->Listen(options.listen));
  return server;
}

}  // namespace waybill
