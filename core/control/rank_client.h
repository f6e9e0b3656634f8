// SPDX-License-Identifier: Apache-2.0

// The common part of trainer_client.h and worker_client.h: a rank on its progress thread, with a
// gRPC stream to the controller.
#ifndef WAYBILL_CORE_CONTROL_RANK_CLIENT_H_
#define WAYBILL_CORE_CONTROL_RANK_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/controller_addresses.h"
#include "core/control/engine_thread.h"
#include "core/control/rank_actions.h"
#include "core/control/rank_stream.h"
#include "core/fabric/fabric.h"
#include "core/protocol/rank_session.h"

namespace waybill {

// As RankIdentity::rank: the controller assigns a free rank.
inline constexpr uint32_t kAnyRank = ~uint32_t{0};

// A rank's identity, job and group. All of it is declared, never inferred.
struct RankIdentity {
  // Address and port of the controller. If there are standbys, the addresses of all controllers,
  // separated by commas.
  std::string controller = "127.0.0.1:7070";
  std::string job = "waybill";
  std::string token;                 // The job's secret.
  uint32_t rank = 0;                 // Or kAnyRank.
  uint32_t world = 1;                // The number of trainers, or of the group's workers.
  std::string group{kDefaultGroup};  // Workers only; ranks are numbered within the group.
  // Workers only: after joining, the worker gets a version that its group has missed from a group
  // that shows it.
  bool catch_up = true;
  bool fetches = false;  // Workers only; see SessionOptions.
  // Called with a line of text when the controller cannot be reached, and again when the reason
  // changes. Called on the progress thread. May be empty.
  std::function<void(absl::string_view)> warn = {};
};

// Receives a rank's notices on its progress thread. The sink must not block. It may call the
// client, except for Pause(), Resume() and the destructor, which wait for this thread.
using NoticeSink = std::function<void(Notice)>;

inline SessionOptions MakeSessionOptions(const RankIdentity& identity, Role role) {
  std::random_device random;
  const bool any = identity.rank == kAnyRank;
  return {
      .id = {role, any ? 0 : identity.rank, role == Role::kWorker ? identity.group : std::string()},
      .any_rank = any,
      .job = identity.job,
      .world = identity.world,
      .catch_up = identity.catch_up,
      .fetches = identity.fetches,
      .incarnation = uint64_t{random()} << 32 | random(),
      .controllers = static_cast<uint32_t>(SplitAddresses(identity.controller).size()),
      .manifest = {},
      .nics = {}};
}

// `Rank` is TrainerRank or WorkerRank. All calls to the rank are made on the progress thread.
template <typename Rank>
class RankClient final : private RankActions {
 public:
  RankClient(const RankIdentity& identity, std::unique_ptr<Fabric> fabric, NoticeSink sink)
      : controllers_(SplitAddresses(identity.controller)),
        token_(identity.token),
        warn_(identity.warn),
        fabric_(std::move(fabric)),
        sink_(std::move(sink)) {}
  ~RankClient() override { Stop(); }

  RankActions* actions() { return this; }
  Fabric* fabric() { return fabric_.get(); }

  // `stepped` is called after each step.
  void Start(std::unique_ptr<Rank> rank, std::function<void(const Rank&)> stepped) {
    rank_ = std::move(rank);
    stepped_ = std::move(stepped);
    thread_ = std::make_unique<EngineThread>(fabric_.get(), [this] {
      rank_->Step(SteadyNow());
      stepped_(*rank_);
      return rank_->next_deadline();
    });
  }

  // Runs `command(rank, now)` on the progress thread, in order.
  template <typename Command>
  void Do(Command command) {
    thread_->Do([this, command = std::move(command)] { command(*rank_, SteadyNow()); });
  }
  template <typename Command>
  void DoAndWait(Command command) {
    thread_->DoAndWait([&] { command(*rank_, SteadyNow()); });
  }

  // Ends the thread and every stream. The rank stays, and its getters can be called. A second call
  // has no effect.
  void Stop() {
    if (thread_ == nullptr) return;
    thread_->DoAndWait([this] {
      ++stream_number_;  // Callbacks of older streams are ignored from now on.
      if (stream_ != nullptr) closing_.push_back(std::move(stream_));
    });
    closing_.clear();
    thread_.reset();
  }
  bool running() const { return thread_ != nullptr; }

  const Rank& rank() const { return *rank_; }
  Rank& rank() { return *rank_; }

 private:
  void OpenStream() override {
    const uint64_t number = ++stream_number_;
    closing_.clear();  // These streams have ended, so this does not wait.
    stream_.reset();
    thread_->Do([this, number] {
      if (number == stream_number_) rank_->OnStreamOpen(SteadyNow());
    });
    stream_ = RankStream::Open(
        controllers_[next_controller_++ % controllers_.size()], token_, ConnectPatience(),
        [this, number](std::vector<proto::ControllerMessage> messages) {
          thread_->Do([this, number, messages = std::move(messages)] {
            connected_ = true;
            trouble_.reset();
            for (const proto::ControllerMessage& message : messages) {
              if (number == stream_number_) rank_->OnMessage(message, SteadyNow());
            }
          });
        },
        [this, number](absl::Status status) {
          if (controllers_.size() > 1) {
            status = While(absl::StrCat("one of ", controllers_.size(), " controllers"), status);
          }
          thread_->Do([this, number, status] {
            if (number != stream_number_) return;
            WarnOfTrouble(status);
            rank_->OnStreamEnd(status, SteadyNow());
          });
        });
  }

  // Warns of a failed attempt to connect. The session reports the loss of a connection that has
  // worked.
  void WarnOfTrouble(const absl::Status& status) {
    const bool is_known = !trouble_ ? connected_ : *trouble_ == status.code();
    connected_ = false;
    trouble_ = status.code();
    if (is_known || !warn_) return;
    warn_(absl::StrCat("cannot reach its controller, and tries again: ", status.message()));
  }

  // With several controllers the next one may be the leader, so a host that does not answer is
  // given up sooner.
  absl::Duration ConnectPatience() const {
    return controllers_.size() > 1 ? absl::Seconds(5) : absl::Seconds(20);
  }

  void CloseStream() override {
    ++stream_number_;
    if (stream_ == nullptr) return;
    stream_->BeginClose();
    closing_.push_back(std::move(stream_));
  }

  void Send(proto::RankMessage message) override {
    if (stream_ != nullptr) stream_->Send(std::move(message));
  }
  void Tell(Notice notice) override { sink_(std::move(notice)); }

  const std::vector<std::string> controllers_;
  const std::string token_;
  const std::function<void(absl::string_view)> warn_;
  const std::unique_ptr<Fabric> fabric_;
  const NoticeSink sink_;
  std::unique_ptr<Rank> rank_;  // Used on the progress thread, like all members below.
  std::function<void(const Rank&)> stepped_;
  size_t next_controller_ = 0;
  uint64_t stream_number_ = 0;
  std::unique_ptr<RankStream> stream_;
  bool connected_ = false;  // The last stream brought messages.
  // The error of the last attempt to connect; nullopt once messages have arrived.
  std::optional<absl::StatusCode> trouble_;
  std::vector<std::unique_ptr<RankStream>> closing_;  // Streams that have ended or are closing.
  std::unique_ptr<EngineThread> thread_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_CLIENT_H_
