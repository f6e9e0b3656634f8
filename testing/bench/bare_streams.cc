// SPDX-License-Identifier: Apache-2.0

#include "testing/bench/bare_streams.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/credentials.h"
#include "core/protocol/frames.h"

namespace waybill {
namespace {

constexpr char kToken[] = "a secret of the bench";
constexpr absl::Duration kTimeout = absl::Seconds(20);

// As many counters and stages as ranks report.
proto::RankReport Report(uint64_t version) {
  proto::RankReport report;
  report.set_version(version);
  report.set_moved_bytes(4096);
  for (int i = 0; i < 40; ++i) {
    proto::Counter* const counter = report.add_counters();
    counter->set_name(absl::StrCat("counter_of_a_rank_", i));
    counter->set_value(version * 1000);
  }
  for (const char* name : {"stage", "send", "arrive", "verify"}) {
    proto::StageTime* const stage = report.add_stages();
    stage->set_name(name);
    stage->set_begin_us(1'700'000'000'000'000);
    stage->set_end_us(1'700'000'000'100'000);
  }
  return report;
}

// One end of a stream that sends frames and hands on the messages of those that come.
template <typename Base, typename Incoming, typename Outgoing>
class End : public Base {
 public:
  using OnMessage = std::function<void(const MessageOf<Incoming>&)>;

  void Send(MessageOf<Outgoing> message) {
    const std::lock_guard lock(mutex_);
    const bool idle = outgoing_.empty();
    outgoing_.Push(std::move(message));
    if (idle) this->StartWrite(&outgoing_.front());
  }

  void OnReadDone(bool ok) noexcept override {
    if (!ok) return OnClosed();
    const auto messages = frames_.Add(std::move(incoming_));
    for (const auto& message : *messages) on_message_(message);
    incoming_ = Incoming();
    this->StartRead(&incoming_);
  }

  void OnWriteDone(bool /*ok*/) noexcept override {
    const std::lock_guard lock(mutex_);
    outgoing_.Pop();
    if (!outgoing_.empty()) this->StartWrite(&outgoing_.front());
  }

 protected:
  explicit End(OnMessage on_message) : on_message_(std::move(on_message)) {}
  virtual void OnClosed() {}
  void Read() { this->StartRead(&incoming_); }

 private:
  const OnMessage on_message_;
  Incoming incoming_;
  IncomingFrames<Incoming> frames_{kMostFrameBytes};
  std::mutex mutex_;
  OutgoingFrames<Outgoing> outgoing_;
};

class ServerEnd final
    : public End<grpc::ServerBidiReactor<proto::RankFrame, proto::ControllerFrame>,
                 proto::RankFrame, proto::ControllerFrame> {
 public:
  // The rank is known from its JOIN.
  using OnRankMessage = std::function<void(ServerEnd*, const proto::RankMessage&)>;

  explicit ServerEnd(OnRankMessage on_message)
      : End([this, on_message = std::move(on_message)](const proto::RankMessage& message) {
          on_message(this, message);
        }) {
    Read();
  }
  uint32_t rank = 0;
  void OnDone() noexcept override { delete this; }

 private:
  void OnClosed() override { Finish(grpc::Status::OK); }
};

class ClientEnd final
    : public End<grpc::ClientBidiReactor<proto::RankFrame, proto::ControllerFrame>,
                 proto::ControllerFrame, proto::RankFrame> {
 public:
  ClientEnd(const std::shared_ptr<grpc::Channel>& channel, OnMessage on_message)
      : End(std::move(on_message)), stub_(proto::Controller::NewStub(channel)) {
    stub_->async()->Attend(&context_, this);
    AddHold();
    Read();
    StartCall();
  }
  ~ClientEnd() override {
    context_.TryCancel();
    RemoveHold();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  void OnDone(const grpc::Status& /*status*/) noexcept override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

 private:
  const std::unique_ptr<proto::Controller::Stub> stub_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

class Streams final : public BareStreams, private proto::Controller::CallbackService {
 public:
  Streams(uint32_t trainers, uint32_t groups)
      : trainers_(trainers), groups_(groups), ends_(trainers + groups), started_(groups) {}
  ~Streams() override {
    clients_.clear();
    if (server_ != nullptr) server_->Shutdown();
  }

  absl::Status Connect() {
    WAYBILL_ASSIGN_OR_RETURN(const ServerIdentity identity, ServerIdentity::Of(kToken));
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", identity.credentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("gRPC starts no server");
    for (uint32_t rank = 0; rank < trainers_ + groups_; ++rank) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // A connection for each.
      WAYBILL_ASSIGN_OR_RETURN(const auto channel, OpenChannel(absl::StrCat("127.0.0.1:", port),
                                                               kToken, std::move(arguments)));
      clients_.push_back(std::make_unique<ClientEnd>(
          channel, [this, rank](const proto::ControllerMessage& m) { OnRankHears(rank, m); }));
      proto::RankMessage join;
      join.mutable_join()->set_rank(rank);
      clients_.back()->Send(std::move(join));
    }
    return Await(joined_, trainers_ + groups_);
  }

  absl::StatusOr<absl::Duration> Update(uint64_t version) override {
    version_ = version;
    published_ = 0;
    told_ = 0;
    for (auto& count : started_) count = 0;
    const absl::Time begin = SteadyNow();
    for (uint32_t t = 0; t < trainers_; ++t) {
      proto::RankMessage message;
      message.mutable_publish()->set_version(version);
      message.mutable_publish()->set_attempt(version);
      message.mutable_publish()->set_deadline_ms(20'000);
      clients_[t]->Send(std::move(message));
    }
    WAYBILL_RETURN_IF_ERROR(Await(told_, trainers_ * groups_));
    return SteadyNow() - begin;
  }

 private:
  grpc::ServerBidiReactor<proto::RankFrame, proto::ControllerFrame>* Attend(
      grpc::CallbackServerContext* /*context*/) noexcept override {
    return std::make_unique<ServerEnd>([this](ServerEnd* end, const proto::RankMessage& message) {
             OnServerHears(end, message);
           })
        .release();
  }

  absl::Status Await(const std::atomic<uint32_t>& count, uint32_t wanted) {
    const absl::Time deadline = SteadyNow() + kTimeout;
    std::unique_lock lock(mutex_);
    while (count < wanted) {
      if (SteadyNow() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat(count.load(), " of ", wanted));
      }
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    }
    return absl::OkStatus();
  }
  void Count(std::atomic<uint32_t>& count, uint32_t wanted) {
    if (++count < wanted) return;
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  // What ranks answer.
  void OnRankHears(uint32_t rank, const proto::ControllerMessage& message) {
    proto::RankMessage answer;
    if (message.has_prepare()) {
      *answer.mutable_ready()->mutable_round() = message.prepare().round();
      answer.mutable_ready()->set_buffer_index(1);
    } else if (message.has_start()) {
      const auto group = static_cast<uint32_t>(message.start().round().epoch());
      *answer.mutable_sent()->mutable_round() = message.start().round();
      if (group + 1 == groups_) *answer.mutable_sent()->mutable_report() = Report(version_);
      // The data of all trainers is there.
      if (++started_[group] == trainers_) {
        proto::RankMessage arrived;
        *arrived.mutable_arrived()->mutable_round() = message.start().round();
        clients_[trainers_ + group]->Send(std::move(arrived));
      }
    } else if (message.has_commit()) {
      *answer.mutable_shown()->mutable_round() = message.commit().round();
      answer.mutable_shown()->set_version(version_);
      *answer.mutable_shown()->mutable_report() = Report(version_);
    } else {
      if (message.has_outcome()) Count(told_, trainers_ * groups_);
      return;
    }
    clients_[rank]->Send(std::move(answer));
  }

  // What a controller sends.
  void OnServerHears(ServerEnd* end, const proto::RankMessage& message) {
    proto::ControllerMessage next;
    if (message.has_join()) {
      end->rank = message.join().rank();
      ends_[end->rank] = end;
      Count(joined_, trainers_ + groups_);
    } else if (message.has_publish()) {
      if (++published_ == trainers_) Open();
    } else if (message.has_ready()) {
      *next.mutable_start()->mutable_round() = message.ready().round();
      next.mutable_start()->set_version(version_);
      next.mutable_start()->set_attempt(version_);
      next.mutable_start()->set_plan_hash(~uint64_t{0});
      next.mutable_start()->add_targets()->set_buffer_index(1);
      for (uint32_t t = 0; t < trainers_; ++t) ends_[t]->Send(next);
    } else if (message.has_arrived()) {
      *next.mutable_commit()->mutable_round() = message.arrived().round();
      next.mutable_commit()->set_version(version_);
      end->Send(std::move(next));
    } else if (message.has_shown()) {
      next.mutable_outcome()->set_version(version_);
      next.mutable_outcome()->set_group(absl::StrCat("group", end->rank - trainers_));
      next.mutable_outcome()->set_committed(true);
      for (uint32_t t = 0; t < trainers_; ++t) ends_[t]->Send(next);
    }
  }

  // All trainers publish: each group's worker prepares.
  void Open() {
    proto::ControllerMessage accepted;
    accepted.mutable_publish_accepted()->set_version(version_);
    for (uint32_t g = 0; g < groups_; ++g) {
      accepted.mutable_publish_accepted()->add_groups(absl::StrCat("group", g));
    }
    for (uint32_t t = 0; t < trainers_; ++t) ends_[t]->Send(accepted);
    for (uint32_t g = 0; g < groups_; ++g) {
      proto::ControllerMessage message;
      message.mutable_prepare()->mutable_round()->set_epoch(g);
      message.mutable_prepare()->mutable_round()->set_sequence(1);
      message.mutable_prepare()->set_version(version_);
      message.mutable_prepare()->set_plan_hash(~uint64_t{0});
      message.mutable_prepare()->set_deadline_ms(20'000);
      ends_[trainers_ + g]->Send(std::move(message));
    }
  }

  const uint32_t trainers_, groups_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<ClientEnd>> clients_;  // The trainers', then the workers'.
  std::vector<ServerEnd*> ends_;                     // By rank.
  std::vector<std::atomic<uint32_t>> started_;       // By group: how many trainers.
  std::atomic<uint64_t> version_ = 0;
  std::atomic<uint32_t> joined_ = 0, published_ = 0, told_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BareStreams>> BareStreams::Open(uint32_t trainers, uint32_t groups) {
  auto streams = std::make_unique<Streams>(trainers, groups);
  WAYBILL_RETURN_IF_ERROR(streams->Connect());
  return streams;
}

}  // namespace waybill
