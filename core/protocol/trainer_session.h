// A trainer's part in a job: it publishes versions, one after the other.
#ifndef WAYBILL_CORE_PROTOCOL_TRAINER_SESSION_H_
#define WAYBILL_CORE_PROTOCOL_TRAINER_SESSION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/protocol/rank_session.h"

namespace waybill {

struct PublishCommand {
  uint64_t version = 0;
  absl::Time deadline;
  bool digests_off = false;
  // No group shows the version if NaNs or infinities are among what is quantised.
  bool fail_on_nonfinite = false;
  // kPublished comes once all groups have decided; else once the version is SENT.
  bool until_committed = false;
  // Not empty: nothing is read before Release(); says what is waited for, as "GPU 0 has not reached
  // its event".
  std::string held_for = {};
};

class TrainerHost : public SessionHost {
 public:
  // A worker's buffer is there from now on.
  virtual absl::Status SetBufferAddress(uint32_t worker, uint32_t buffer_index,
                                        const proto::Buffer& buffer) = 0;
  // Begins to send; OnSent() follows, or OnStopped() after Abort().
  virtual absl::Status Start(const UpdateId& update, const PublishCommand& publish,
                             bool digests_off, const proto::Start& start) = 0;
  // OnStopped() follows once nothing of the update is on its way any more.
  virtual void Abort(const UpdateId& update) = 0;
  // Ends what is being sent. Nothing of it reads the tensors or can land when this returns.
  virtual void StopNow() = 0;
};

class TrainerSession final : public RankSession {
 public:
  TrainerSession(SessionOptions options, TrainerHost* host);

  // Publishes a version once the ones before it are decided; one kPublished follows, at the latest
  // one second after the deadline. The tensors are not read after it.
  void Publish(uint64_t token, const PublishCommand& command, absl::Time now);
  // What a held publish waited for is done.
  void Release(uint64_t token, absl::Time now);
  // Ends that publish in kCancelled within a second or so, unless it is SENT.
  void Cancel(uint64_t token, absl::Time now);

  void OnSent(const UpdateId& update, absl::Time now);
  void OnStopped(const UpdateId& update, absl::Time now);
  // What was sent must not be shown; the controller's ABORT follows.
  void OnRefused(const absl::Status& status);

 private:
  enum class State {
    kQueued,   // The controller does not know of it.
    kAsked,    // The controller knows, and nothing is sent.
    kWriting,  // START came, and the engine is at work.
    kSent,     // What becomes of it is not known yet.
  };
  struct Publication {
    uint64_t token = 0;
    uint64_t attempt = 0;  // By which the controller knows it.
    PublishCommand command;
    State state = State::kQueued;
    absl::Status status;                                // Why it will fail, while it stops.
    absl::Time stop_deadline = absl::InfiniteFuture();  // Then it is stopped by force.
    std::map<std::string, absl::Status> outcomes;       // By group.
  };

  void FillJoin(proto::Join& join) const override;
  void OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) override;
  void OnEstablished(absl::Time now) override;
  void OnLost(const absl::Status& status, absl::Time now) override;
  bool PrepareToLeave(absl::Time now) override;
  void OnRoleTime(absl::Time now) override;
  absl::Time role_deadline() const override;

  void OnStart(const proto::Start& start, absl::Time now);
  void OnAbort(const proto::Abort& abort, absl::Time now);
  void OnOutcome(const proto::Outcome& outcome);
  void SendFailed(const UpdateId& update, const absl::Status& status);
  void Withdraw(const Publication& publication, const absl::Status& status);
  void AskForNext(absl::Time now);
  void Stop(const absl::Status& status, absl::Time now);
  void OnQuiescent(absl::Time now);
  void FinishFirst(const absl::Status& status, absl::Time now);
  void FinishSent(const absl::Status& status);
  void SettleSent();
  Publication* WithVersion(uint64_t version);

  TrainerHost& host_;
  std::deque<Publication> queue_;    // Not SENT; the first one is at the controller.
  std::optional<Publication> sent_;  // The last one that was, until every group has decided.
  uint64_t last_sent_version_ = 0;
  uint64_t last_attempt_;  // From the incarnation on: no two processes have the same attempts.
  UpdateId update_;        // Of the last PREPARE.
  bool digests_off_ = false;
  std::optional<UpdateId> writing_;         // What the engine is at work on, also while it stops.
  std::optional<proto::Start> held_start_;  // Until the engine is quiescent.
  bool stopping_ = false;                   // Abort() was called; OnStopped() is to come.
  absl::Time quiescence_deadline_ = absl::InfiniteFuture();
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_TRAINER_SESSION_H_
