// SPDX-License-Identifier: Apache-2.0

#include "core/control/rank_stream.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/credentials.h"
#include "core/control/keepalive.h"
#include "core/protocol/frames.h"

namespace waybill {
namespace {

// The longest message of a controller: a plan, or the buffers of all peers.
constexpr size_t kMostMessageBytes = size_t{1} << 30;

class Stream final : public RankStream,
                     public grpc::ClientBidiReactor<proto::RankFrame, proto::ControllerFrame> {
 public:
  Stream(std::string controller, const std::shared_ptr<grpc::Channel>& channel,
         std::function<void(std::vector<proto::ControllerMessage>)> on_messages,
         std::function<void(absl::Status)> on_end)
      : controller_(std::move(controller)),
        stub_(proto::Controller::NewStub(channel)),
        on_messages_(std::move(on_messages)),
        on_end_(std::move(on_end)),
        frames_(kMostMessageBytes) {
    const std::lock_guard lock(mutex_);  // Makes the writes so far visible to the callbacks.
    stub_->async()->Attend(&context_, this);
    AddHold();  // Needed because writes are started outside of callbacks.
    StartRead(&incoming_);
    StartCall();
  }

  ~Stream() override {
    // Give the peer time to end the stream, because cancelling drops messages that the peer has not
    // read. The peer may have stopped reading.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    BeginClose();
    std::unique_lock lock(mutex_);
    ended_.wait_until(lock, deadline, [this] { return done_; });
    lock.unlock();
    context_.TryCancel();
    lock.lock();
    ended_.wait(lock, [this] { return done_; });
  }

  void Send(proto::RankMessage message) override {
    const std::lock_guard lock(mutex_);
    if (broken_ || closing_) return;
    const bool idle = outgoing_.empty();
    outgoing_.Push(std::move(message));
    if (idle) StartWrite(&outgoing_.front());
  }

  void BeginClose() override {
    std::unique_lock lock(mutex_);
    closing_ = true;
    EndWritesIfDone(lock);
  }

  // gRPC swallows an exception of a callback, and would never read the stream again. Callbacks are
  // noexcept, so that an exception ends the process with its message.
  void OnReadDone(bool ok) noexcept override {
    if (!ok) return Break();
    absl::StatusOr<std::vector<proto::ControllerMessage>> messages =
        frames_.Add(std::move(incoming_));
    if (!messages.ok()) {
      {
        const std::lock_guard lock(mutex_);
        wrong_ = messages.status();
      }
      context_.TryCancel();
      return Break();
    }
    if (!messages->empty()) {
      {
        const std::lock_guard lock(mutex_);
        heard_ = true;
      }
      on_messages_(*std::move(messages));
    }
    incoming_ = proto::ControllerFrame();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) noexcept override {
    std::unique_lock lock(mutex_);
    outgoing_.Pop();
    if (!ok) {
      broken_ = true;
      outgoing_.clear();
    }
    if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else {
      EndWritesIfDone(lock);
    }
  }

  void OnDone(const grpc::Status& status) noexcept override {
    absl::Status why;
    bool heard;
    {
      const std::lock_guard lock(mutex_);
      why = wrong_;
      heard = heard_;
    }
    if (why.ok() && heard) {
      why = absl::UnavailableError(
          absl::StrCat("controller ", controller_, " is gone: its stream ended"));
    } else if (why.ok()) {
      why = ChannelError(controller_, status);
    }
    on_end_(std::move(why));
    const std::lock_guard lock(mutex_);
    done_ = true;
    ended_.notify_all();
  }

 private:
  // The stream is not read any more, so writes end too.
  void Break() {
    std::unique_lock lock(mutex_);
    broken_ = true;
    EndWritesIfDone(lock);
  }

  // Ends writing once no write is in progress.
  void EndWritesIfDone(std::unique_lock<std::mutex>& lock) {
    if (!(closing_ || broken_) || !outgoing_.empty() || std::exchange(released_, true)) return;
    const bool say_so = !broken_;
    lock.unlock();
    if (say_so) StartWritesDone();
    RemoveHold();
  }

  const std::string controller_;
  const std::unique_ptr<proto::Controller::Stub> stub_;
  const std::function<void(std::vector<proto::ControllerMessage>)> on_messages_;
  const std::function<void(absl::Status)> on_end_;
  grpc::ClientContext context_;
  proto::ControllerFrame incoming_;
  IncomingFrames<proto::ControllerFrame> frames_;
  std::mutex mutex_;
  bool heard_ = false;  // Guarded by mutex_, like all members below.
  std::condition_variable ended_;
  OutgoingFrames<proto::RankFrame> outgoing_;  // The first frame is being written.
  absl::Status wrong_;
  bool closing_ = false;
  bool broken_ = false;
  bool released_ = false;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<RankStream> RankStream::Open(
    const std::string& controller, const std::string& token, absl::Duration connect_patience,
    std::function<void(std::vector<proto::ControllerMessage>)> on_messages,
    std::function<void(absl::Status)> on_end) {
  grpc::ChannelArguments arguments;
  // Each stream has its own connection, because the session paces the attempts.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // gRPC derives the time limit of an attempt to connect from this value.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(connect_patience)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto channel = OpenChannel(controller, token, arguments);
  if (!channel.ok()) {
    on_end(channel.status());
    return nullptr;
  }
  return std::make_unique<Stream>(controller, *channel, std::move(on_messages), std::move(on_end));
}

}  // namespace waybill
