#include "core/control/rank_stream.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/control/control.grpc.pb.h"

namespace waybill {
namespace {

class Stream final : public RankStream,
                     public grpc::ClientBidiReactor<proto::RankMessage, proto::ControllerMessage> {
 public:
  Stream(std::string controller, const std::shared_ptr<grpc::Channel>& channel,
         std::function<void(const proto::ControllerMessage&)> on_message,
         std::function<void(absl::Status)> on_end)
      : controller_(std::move(controller)),
        stub_(proto::Controller::NewStub(channel)),
        on_message_(std::move(on_message)),
        on_end_(std::move(on_end)) {
    stub_->async()->Attend(&context_, this);
    AddHold();  // Writes come from outside of reactions.
    StartRead(&incoming_);
    StartCall();
  }

  ~Stream() override {
    // What was sent before arrives, if it can soon; the peer need not be reading. A stream that is
    // cancelled takes with it what the peer has not read: the peer is to end it.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    std::unique_lock lock(mutex_);
    drained_.wait_until(lock, deadline, [this] { return outgoing_.empty() || broken_; });
    const bool all_written = outgoing_.empty() && !broken_;
    lock.unlock();
    if (all_written) StartWritesDone();
    RemoveHold();
    lock.lock();
    if (all_written) drained_.wait_until(lock, deadline, [this] { return done_; });
    lock.unlock();
    context_.TryCancel();
    lock.lock();
    drained_.wait(lock, [this] { return done_; });
  }

  void Send(proto::RankMessage message) override {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        const std::lock_guard lock(mutex_);
        broken_ = true;
        drained_.notify_all();
      }
      on_end_(absl::UnavailableError(
          absl::StrCat("controller ", controller_, " is gone: its stream ended")));
      return;
    }
    on_message_(incoming_);
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (!ok) {
      broken_ = true;
      outgoing_.clear();
    }
    if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else {
      drained_.notify_all();
    }
  }

  void OnDone(const grpc::Status&) override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    drained_.notify_all();
  }

 private:
  const std::string controller_;
  const std::unique_ptr<proto::Controller::Stub> stub_;
  const std::function<void(const proto::ControllerMessage&)> on_message_;
  const std::function<void(absl::Status)> on_end_;
  grpc::ClientContext context_;
  proto::ControllerMessage incoming_;
  std::mutex mutex_;
  std::condition_variable drained_;
  std::deque<proto::RankMessage> outgoing_;  // The first one is being written.
  bool broken_ = false;
  bool done_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankStream>> RankStream::Open(
    const std::string& controller, absl::Time deadline, const std::stop_token& cancel,
    std::function<void(const proto::ControllerMessage&)> on_message,
    std::function<void(absl::Status)> on_end) {
  grpc::ChannelArguments arguments;
  // Who comes before the controller asks again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  const absl::Time began = absl::Now();
  const auto channel =
      grpc::CreateCustomChannel(controller, grpc::InsecureChannelCredentials(), arguments);
  // gRPC's wait cannot be woken: a cancel is heard between two of them.
  constexpr absl::Duration kBetweenLooks = absl::Milliseconds(50);
  while (!channel->WaitForConnected(
      absl::ToChronoTime(std::min(deadline, absl::Now() + kBetweenLooks)))) {
    if (cancel.stop_requested()) {
      return absl::CancelledError(absl::StrCat("controller ", controller, ": cancelled"));
    }
    if (absl::Now() < deadline) continue;
    return absl::UnavailableError(
        absl::StrCat("controller ", controller, ": nobody answered for ",
                     absl::FormatDuration(absl::Floor(absl::Now() - began, absl::Milliseconds(1))),
                     "; is it running, and is the address right?"));
  }
  return std::make_unique<Stream>(controller, channel, std::move(on_message), std::move(on_end));
}

}  // namespace waybill
