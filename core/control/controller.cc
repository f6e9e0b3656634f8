// SPDX-License-Identifier: Apache-2.0

#include "core/control/controller.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/all_cores.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/credentials.h"
#include "core/control/decision_log.h"
#include "core/control/doorkeeper.h"
#include "core/control/grpc_deadline.h"
#include "core/control/keepalive.h"
#include "core/control/revoked_keys.h"
#include "core/control/rights.h"
#include "core/control/task_thread.h"
#include "core/control/verify_inquiry.h"
#include "core/net/tcp_socket.h"
#include "core/protocol/frames.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

// The longest message of a rank: a manifest, or the offers of a worker with 100,000 regions.
constexpr size_t kMostMessageBytes = size_t{1} << 30;
// The longest message before a rank has joined.
constexpr size_t kMostStrangerBytes = 64 << 10;
// The longest time that workers are given to verify their shown versions.
constexpr absl::Duration kMostVerifyTime = absl::Hours(1);
// The time after which a closing stream is cancelled if the peer does not read.
constexpr absl::Duration kCloseTimeout = absl::Seconds(2);

class Server;

// One rank's stream. Deletes itself when gRPC is done with it.
//
// gRPC swallows an exception of a callback, and would never read the stream again. Callbacks are
// noexcept, so that an exception ends the process with its message.
class Connection final : public grpc::ServerBidiReactor<proto::RankFrame, proto::ControllerFrame> {
 public:
  Connection(Server* server, ConnectionId id, grpc::CallbackServerContext* context)
      : server_(server), id_(id), context_(context), frames_(kMostStrangerBytes) {
    StartRead(&incoming_);
  }

  void Send(proto::ControllerMessage message) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    const bool idle = outgoing_.empty();
    outgoing_.Push(std::move(message));
    if (idle) StartWrite(&outgoing_.front());
  }

  // Ends the stream once all messages have left.
  void Close() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (outgoing_.empty()) End();
  }
  void Cancel() { context_->TryCancel(); }

  void OnReadDone(bool ok) noexcept override;
  void OnWriteDone(bool ok) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!ok) outgoing_.clear();
    if (!outgoing_.empty()) outgoing_.Pop();
    if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      End();
    }
  }
  void OnDone() noexcept override;

 private:
  void End() {
    if (std::exchange(ended_, true)) return;
    Finish(grpc::Status::OK);
  }

  Server* const server_;
  const ConnectionId id_;
  grpc::CallbackServerContext* const context_;
  proto::RankFrame incoming_;
  IncomingFrames<proto::RankFrame> frames_;
  std::mutex mutex_;
  OutgoingFrames<proto::ControllerFrame> outgoing_;  // The first frame is being written.
  bool closing_ = false;
  bool ended_ = false;
};

class Server final : public Controller,
                     public proto::Controller::CallbackService,
                     private CoordinatorActions {
 public:
  Server(const ControllerOptions& options, std::unique_ptr<DecisionStore> store,
         RevokedKeys revoked)
      : options_(options),
        store_(std::move(store)),
        coordinator_(Complete(options.coordinator, store_ != nullptr),
                     store_ == nullptr ? std::vector<Decision>{} : store_->decisions(), this),
        revoked_(std::move(revoked)) {}

  ~Server() override {
    if (doorkeeper_ != nullptr) doorkeeper_->Stop();  // Running calls still use it.
    {
      const std::lock_guard lock(mutex_);
      takes_inquiries_ = false;
      inquiry_.Stop(absl::UnavailableError("its controller ends"));
    }
    if (server_ != nullptr) server_->Shutdown(ToGrpcDeadline(SteadyNow()));
    records_.reset();
    computations_.reset();
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (clock_.joinable()) clock_.join();
  }

  absl::Status Listen(const std::string& address) {
    WAYBILL_ASSIGN_OR_RETURN(identity_, ServerIdentity::Of(options_.token));
    WAYBILL_RETURN_IF_ERROR(CheckJob(identity_->rights(), options_.coordinator.job));
    // A stranger takes two descriptors. At least half of all descriptors are left for ranks.
    const size_t files = net::RaiseLimitOfOpenFiles();
    absl::StatusOr<std::unique_ptr<Doorkeeper>> doorkeeper = Doorkeeper::Listen(
        address,
        {.strangers = std::max<size_t>(1, std::min<size_t>(options_.most_strangers, files / 4)),
         .patience = options_.stranger_timeout});
    if (!doorkeeper.ok()) {
      return absl::UnavailableError(absl::StrCat("controller: ", doorkeeper.status().message()));
    }
    grpc::ServerBuilder builder;
    std::unique_ptr<Doorkeeper::Acceptor> acceptor =
        builder.experimental().AddExternalConnectionAcceptor(
            grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
            identity_->credentials());
    builder.AddChannelArgument(
        GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
        static_cast<int>(absl::ToInt64Milliseconds(options_.stranger_timeout)));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kKeepaliveMs / 2);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("controller: gRPC starts no server");
    doorkeeper_ = *std::move(doorkeeper);
    doorkeeper_->Start(std::move(acceptor));
    WAYBILL_ASSIGN_OR_RETURN(address_, net::ParseHostPort(address));
    address_.port = doorkeeper_->port();
    clock_ = std::thread([this] { KeepTime(); });
    return absl::OkStatus();
  }

  std::string address() const override { return net::ToString(address_); }

  proto::StatusReply status(const proto::StatusRequest& request) const override {
    const std::lock_guard lock(mutex_);
    return coordinator_.Status(request);
  }
  absl::Status halted() const override {
    const std::lock_guard lock(mutex_);
    return coordinator_.halted();
  }

  grpc::ServerBidiReactor<proto::RankFrame, proto::ControllerFrame>* Attend(
      grpc::CallbackServerContext* context) noexcept override {
    doorkeeper_->OnProved(context->peer());
    const std::lock_guard lock(mutex_);
    const ConnectionId id = ++last_connection_;
    // Its own until OnDone().
    auto* connection = std::make_unique<Connection>(this, id, context).release();
    connections_.emplace(id, Open{.connection = connection, .peer = PeerOf(*context)});
    if (strangers_.size() >= options_.most_strangers) {
      CloseLocked(id);
    } else {
      strangers_[id] = SteadyNow() + options_.stranger_timeout;
    }
    WakeClock();
    return connection;
  }

  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context,
                                const proto::Question* question,
                                proto::Answer* answer) noexcept override {
    doorkeeper_->OnProved(context->peer());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::Status status = MayAsk(*context, *question);
    if (status.ok()) status = Answer(*question, reactor, *answer);
    if (!status.ok()) {
      *answer->mutable_error() = EncodeError(status);
      reactor->Finish(grpc::Status::OK);
    }
    return reactor;
  }

  // The peer of a stream. A closed stream is not read any more.
  enum class Peer { kRank, kStranger, kClosed };
  Peer OnMessages(ConnectionId id, const std::vector<proto::RankMessage>& messages) {
    const std::lock_guard lock(mutex_);
    for (const proto::RankMessage& message : messages) {
      if (!IsOpen(id)) break;
      if (absl::Status status = MayJoin(id, message); !status.ok()) {
        Dismiss(id, status);
        break;
      }
      const bool was_admitted = coordinator_.IsAdmitted(id);
      if (options_.observer != nullptr && was_admitted) {
        options_.observer->OnReceived(id, message, SteadyNow());
      }
      if (message.has_verified()) {
        inquiry_.OnVerified(id, message.verified());
      } else {
        coordinator_.OnMessage(id, message, SteadyNow());
      }
      if (options_.observer != nullptr && !was_admitted && coordinator_.IsAdmitted(id)) {
        options_.observer->OnJoined(id, message.join());
      }
    }
    WakeClock();
    if (!IsOpen(id)) return Peer::kClosed;
    if (!coordinator_.IsAdmitted(id)) return Peer::kStranger;
    strangers_.erase(id);
    return Peer::kRank;
  }

  // The stream cannot be used any more.
  void OnGone(ConnectionId id) {
    const std::lock_guard lock(mutex_);
    coordinator_.OnGone(id, SteadyNow());
    CloseLocked(id);
    WakeClock();
  }

  // gRPC has finished the stream.
  void OnDone(ConnectionId id) {
    const std::lock_guard lock(mutex_);
    connections_.erase(id);
    strangers_.erase(id);
  }

 private:
  struct Open {
    Connection* connection = nullptr;
    absl::StatusOr<CertificateInfo> peer;
    absl::Time cancel_at = absl::InfiniteFuture();  // Set when the stream is being closed.
  };

  static CoordinatorOptions Complete(CoordinatorOptions options, bool durable) {
    options.incarnation = std::random_device()();
    options.decisions_are_durable = durable;
    return options;
  }

  bool IsOpen(ConnectionId id) const {
    const auto found = connections_.find(id);
    return found != connections_.end() && found->second.cancel_at == absl::InfiniteFuture();
  }

  // Describes the peer's certificate, unless it is revoked.
  absl::StatusOr<CertificateInfo> PeerOf(const grpc::ServerContextBase& context) const {
    WAYBILL_ASSIGN_OR_RETURN(CertificateInfo peer, identity_->Peer(*context.auth_context()));
    WAYBILL_RETURN_IF_ERROR(revoked_.Check(peer));
    return peer;
  }

  absl::Status MayAsk(const grpc::ServerContextBase& context,
                      const proto::Question& question) const {
    const std::lock_guard lock(mutex_);
    WAYBILL_ASSIGN_OR_RETURN(const CertificateInfo peer, PeerOf(context));
    return CheckQuestion(peer.rights, options_.coordinator.job, question);
  }

  // Returns OK for a message that is no join.
  absl::Status MayJoin(ConnectionId id, const proto::RankMessage& message) const {
    if (!message.has_join()) return absl::OkStatus();
    WAYBILL_ASSIGN_OR_RETURN(const CertificateInfo peer, connections_.at(id).peer);
    return CheckJoin(peer.rights, options_.coordinator.job, message.join());
  }

  void Dismiss(ConnectionId id, const absl::Status& why) {
    proto::ControllerMessage message;
    *message.mutable_dismissal()->mutable_error() = EncodeError(why);
    Send(id, std::move(message));
    coordinator_.OnGone(id, SteadyNow());
    CloseLocked(id);
  }

  void DismissRevoked() {
    std::vector<std::pair<ConnectionId, absl::Status>> revoked;
    for (const auto& [id, open] : connections_) {
      if (!open.peer.ok()) continue;
      if (absl::Status status = revoked_.Check(*open.peer); !status.ok()) {
        revoked.emplace_back(id, std::move(status));
      }
    }
    for (const auto& [id, status] : revoked) Dismiss(id, status);
  }

  // Finishes the reactor, now or later, unless it fails.
  absl::Status Answer(const proto::Question& question, grpc::ServerUnaryReactor* reactor,
                      proto::Answer& answer) {
    std::unique_lock lock(mutex_);
    switch (question.kind_case()) {
      case proto::Question::kStatus:
        *answer.mutable_status() = coordinator_.Status(question.status());
        break;
      case proto::Question::kTensors: {
        WAYBILL_ASSIGN_OR_RETURN(const Manifest tensors, coordinator_.JobTensors());
        lock.unlock();  // There may be many callbacks.
        answer.set_manifest(EncodeManifest(tensors));
        break;
      }
      case proto::Question::kRemovedGroup: {
        const absl::StatusOr<uint32_t> workers =
            coordinator_.RemoveGroup(question.removed_group(), SteadyNow());
        WakeClock();
        if (!workers.ok()) return workers.status();
        answer.set_removed_workers(*workers);
        break;
      }
      case proto::Question::kVerify:
        return BeginInquiry(question.verify(),
                            [reactor, &answer](std::vector<proto::Verified> verified) {
                              for (proto::Verified& its : verified) {
                                *answer.add_verified() = std::move(its);
                              }
                              reactor->Finish(grpc::Status::OK);
                            });
      case proto::Question::KIND_NOT_SET:
        return absl::InvalidArgumentError("this controller does not know the question");
    }
    reactor->Finish(grpc::Status::OK);
    return absl::OkStatus();
  }

  absl::Status BeginInquiry(const proto::VerifyRequest& request,
                            std::function<void(std::vector<proto::Verified>)> done) {
    if (!takes_inquiries_) return absl::UnavailableError("the controller ends");
    if (inquiry_.is_going_on()) {
      return absl::UnavailableError("the workers are being asked already; try again");
    }
    const auto workers = coordinator_.Workers(request.group());
    if (workers.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "no worker ",
          request.group().empty() ? "" : absl::StrCat("of group ", request.group(), " "),
          "has joined"));
    }
    const absl::Duration timeout =
        std::min(absl::Milliseconds(request.timeout_ms()), kMostVerifyTime);
    inquiry_.Begin(++last_request_, workers, SteadyNow(), timeout, std::move(done));
    proto::ControllerMessage message;
    message.set_verify(last_request_);
    for (const auto& [connection, id] : workers) Send(connection, message);
    WakeClock();
    return absl::OkStatus();
  }

  void CloseLocked(ConnectionId id) {
    strangers_.erase(id);
    inquiry_.OnGone(id);
    if (options_.observer != nullptr) options_.observer->OnClosed(id, SteadyNow());
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second.cancel_at != absl::InfiniteFuture()) return;
    found->second.cancel_at = SteadyNow() + kCloseTimeout;
    found->second.connection->Close();
  }

  // CoordinatorActions; the lock is held.
  void Send(ConnectionId id, proto::ControllerMessage message) override {
    if (!IsOpen(id)) return;
    if (options_.observer != nullptr) options_.observer->OnSent(id, message, SteadyNow());
    connections_.at(id).connection->Send(std::move(message));
  }
  void Close(ConnectionId id) override { CloseLocked(id); }
  void Compute(Work work) override {
    computations_->Do([this, work = std::move(work)] {
      const Completion completion = work(ForEachOnAllCores);
      const std::lock_guard lock(mutex_);
      completion(SteadyNow());
      WakeClock();
    });
  }
  void Record(uint64_t ticket, const Decision& decision) override {
    records_->Do([this, ticket, decision] {
      std::pair<Recorded, absl::Status> recorded = {Recorded::kDurable, absl::OkStatus()};
      if (store_ != nullptr) recorded = store_->Append(decision);
      const std::lock_guard lock(mutex_);
      coordinator_.OnRecorded(ticket, recorded.first, recorded.second, SteadyNow());
      WakeClock();
    });
  }
  void Forget(const std::string& group) override {
    if (store_ == nullptr) return;
    records_->Do([this, group] { store_->Forget(group); });
  }

  absl::Time NextDeadline() const {
    absl::Time next = std::min({coordinator_.next_deadline(), inquiry_.next_deadline(),
                                revoked_.next_deadline(), SteadyNow() + absl::Hours(1)});
    for (const auto& [id, deadline] : strangers_) next = std::min(next, deadline);
    for (const auto& [id, open] : connections_) next = std::min(next, open.cancel_at);
    return next;
  }

  // Call it after every event. The clock's thread sleeps through those that bring no deadline
  // nearer.
  void WakeClock() {
    if (NextDeadline() < clock_wakes_) changed_.notify_all();
  }

  void KeepTime() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      clock_wakes_ = NextDeadline();
      changed_.wait_until(lock, ToSteadyTimePoint(clock_wakes_));
      if (SteadyNow() < NextDeadline()) continue;
      const absl::Time now = SteadyNow();
      coordinator_.OnTime(now);
      inquiry_.OnTime(now);
      if (revoked_.OnTime(now)) DismissRevoked();
      std::vector<ConnectionId> late;
      for (const auto& [id, deadline] : strangers_) {
        if (now >= deadline) late.push_back(id);
      }
      for (const ConnectionId id : late) CloseLocked(id);
      for (auto& [id, open] : connections_) {
        if (now < open.cancel_at) continue;
        open.cancel_at = now + kCloseTimeout;
        open.connection->Cancel();
      }
    }
  }

  const ControllerOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::unique_ptr<DecisionStore> store_;  // Used on the thread of records_.
  Coordinator coordinator_;
  VerifyInquiry inquiry_;
  RevokedKeys revoked_;
  bool takes_inquiries_ = true;
  // Starts at a random number, so that an answer to an earlier controller's request is not taken
  // for an answer to this one's.
  uint64_t last_request_ = uint64_t{std::random_device()()} << 32;
  ConnectionId last_connection_ = 0;
  std::map<ConnectionId, Open> connections_;
  // Streams that have not joined, with their deadlines.
  std::map<ConnectionId, absl::Time> strangers_;
  // Plans and records have threads of their own: a slow plan delays no record, and neither delays a
  // message.
  std::unique_ptr<TaskThread> computations_ = std::make_unique<TaskThread>();
  std::unique_ptr<TaskThread> records_ = std::make_unique<TaskThread>();
  std::thread clock_;
  absl::Time clock_wakes_ = absl::InfinitePast();
  net::HostPort address_;
  std::optional<ServerIdentity> identity_;  // Set by Listen().
  std::unique_ptr<Doorkeeper> doorkeeper_;
  std::unique_ptr<grpc::Server> server_;
};

void Connection::OnReadDone(bool ok) noexcept {
  if (!ok) return server_->OnGone(id_);
  const absl::StatusOr<std::vector<proto::RankMessage>> messages =
      frames_.Add(std::move(incoming_));
  if (!messages.ok()) return server_->OnGone(id_);
  if (!messages->empty()) {
    const Server::Peer peer = server_->OnMessages(id_, *messages);
    if (peer == Server::Peer::kClosed) return;
    if (peer == Server::Peer::kRank) frames_.SetLimit(kMostMessageBytes);
  }
  incoming_ = proto::RankFrame();
  StartRead(&incoming_);
}

void Connection::OnDone() noexcept {
  server_->OnDone(id_);
  delete this;
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:") || absl::StartsWith(address, "unix:");
}

absl::Status CheckListen(const ControllerOptions& options) {
  if (IsLoopback(options.listen) || !options.token.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("controller: listening on ", options.listen,
                                                 " lets others in; give a token, or listen on "
                                                 "127.0.0.1"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(const ControllerOptions& options) {
  WAYBILL_RETURN_IF_ERROR(CheckListen(options));
  if (absl::StrContains(options.state, "://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("controller: state ", options.state,
                     " is not a file; a controller inside another program keeps its state in a "
                     "file, and `waybill controller --state` also takes etcd://HOST:PORT"));
  }
  std::unique_ptr<DecisionStore> store;
  if (!options.state.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(store, DecisionLog::Open(options.state));
  }
  return Start(options, std::move(store));
}

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(
    const ControllerOptions& options, std::unique_ptr<DecisionStore> store) {
  WAYBILL_RETURN_IF_ERROR(CheckListen(options));
  WAYBILL_ASSIGN_OR_RETURN(RevokedKeys revoked, RevokedKeys::Read(options.revoked, SteadyNow()));
  auto server = std::make_unique<Server>(options, std::move(store), std::move(revoked));
  WAYBILL_RETURN_IF_ERROR(server->Listen(options.listen));
  return server;
}

}  // namespace waybill
