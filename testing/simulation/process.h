// SPDX-License-Identifier: Apache-2.0

// A process that is, or was, a rank: its session and engine, and its user.
#ifndef WAYBILL_TESTING_SIMULATION_PROCESS_H_
#define WAYBILL_TESTING_SIMULATION_PROCESS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/control/rank_actions.h"
#include "core/control/trainer_rank.h"
#include "core/control/worker_rank.h"
#include "core/fabric/loopback/loopback.h"
#include "testing/faulty_fabric/faulty_fabric.h"
#include "testing/simulation/job.h"
#include "testing/simulation/run.h"

namespace waybill::simulation {

class Process;

// What a process needs from the world around it.
class ProcessHost {
 public:
  virtual ~ProcessHost() = default;
  // Opens a stream to the controller; returns its number.
  virtual uint64_t OpenStream(Process* process) = 0;
  virtual void CloseStream(uint64_t stream) = 0;
  virtual void Send(uint64_t stream, proto::RankMessage message) = 0;
  // Returns how many decisions are recorded, and the newest version among them.
  virtual size_t decision_count() const = 0;
  virtual uint64_t newest_decided() const = 0;
  // Returns true if a process whose place `process` took is alive.
  virtual bool HasRival(const Process& process) const = 0;
  // The process has come back to a controller.
  virtual void OnBack(const Process& process) = 0;
  // A trainer's user was told what became of a version.
  // `good`: all workers of the group are said to show it.
  virtual void OnOutcome(uint64_t version, const std::string& group, bool committed, bool good) = 0;
  // The user of a worker could not use a version that is committed.
  virtual void OnUnusable(uint64_t version, const std::string& group) = 0;
  // A trainer's user says that groups may show a version that waits for it.
  virtual void OnWord(uint64_t version) = 0;
  // A trainer sends a version of that composition.
  virtual void OnStart(uint64_t version, uint64_t composition) = 0;
  // A trainer's publish has ended: well, so that the workers that a bound of staleness counts show
  // no version before `oldest`; or because one of them still did at its deadline.
  virtual void OnPublished(const Process& trainer, uint64_t version, uint64_t oldest,
                           bool in_time) = 0;
  // A worker shows `version`; it showed `before` until now.
  virtual void OnShown(const Process& process, uint64_t before, uint64_t version) = 0;
};

// Checks what needs no other process: "whole", "quiet", "bounded" and "no growth".
class Process final : public RankActions {
 public:
  // Starts a rank, which asks to join. The pointers outlive the process.
  Process(Run* run, const Job* job, LoopbackNetwork* network, ProcessHost* host, RankId id,
          uint64_t incarnation);
  ~Process() override;

  // Its number may not be that of its place in the job, if the controller has chosen it.
  RankId id() const { return id_; }
  RankId place() const { return place_; }
  bool is_trainer() const { return id_.role == Role::kTrainer; }
  const std::string& name() const { return name_; }
  bool joined() const { return joined_; }
  bool fetches() const { return !is_trainer() && job_.Fetches(id_.group); }
  // Returns true once the process was dismissed, or was not let in.
  bool ended() const { return ended_; }
  // Returns true once the process is no rank any more: it has ended or left.
  bool gone() const { return ended_ || left_; }
  bool leaving() const { return leaving_; }
  uint64_t shown_version() const { return worker_ ? worker_->shown_version() : 0; }
  bool shows_exactly() const { return worker_ && worker_->session().exact(); }
  bool has_shown_it_for(absl::Duration time) const { return run_.now() - shown_at_ >= time; }
  FaultyFabric& fabric() { return *fabric_; }

  // --- its stream ---

  uint64_t stream() const { return stream_; }  // 0: none.
  void OnStreamOpen();
  void OnStreamEnd();
  void OnMessage(const proto::ControllerMessage& message);

  // --- time ---

  // Does what can be done now: the rank's work, then the user's.
  void Step();
  // Returns when something has to be done or checked.
  absl::Time next_event() const;
  // Stops the process amid a step, which goes on before the process hears anything.
  void Stop(absl::Duration time);
  void GoOn();
  // Returns true if the process has heard the controller, and was heard, all that time.
  bool was_here_for(absl::Duration time) const { return run_.now() - here_since_ >= time; }
  // Makes the process go on without polling its lanes for a while.
  void LookAway(absl::Duration time) { looks_away_until_ = run_.now() + time; }
  bool stopped() const { return run_.now() < stopped_until_; }
  bool hears() const { return !stopped() && !interrupted_; }
  // Moves earlier deadlines of calls to `time`.
  void ExcuseUntil(absl::Time time);

  // --- its place ---

  // From now on another process may have the place of this one.
  void LosePlace() { replaced_ = was_replaced_ = true; }
  void RegainPlace() { replaced_ = false; }
  bool has_lost_place() const { return replaced_; }
  // Another process has the place for a while at least, or decisions about it are forgotten.
  void SharePlace() { was_replaced_ = true; }
  bool was_replaced() const { return was_replaced_; }  // At any time.
  // Returns how many decisions were recorded when the process joined.
  size_t born() const { return born_; }

  // --- a trainer's user ---

  // `selects`: everything, as a selection. Trainers that have not made the same versions before are
  // refused then.
  void Publish(uint64_t version, absl::Duration timeout, bool selects);
  void CancelPublish();
  bool publishing() const { return publishing_ != 0 || holding_; }
  // Returns the last version whose call has ended, or that was left out.
  uint64_t done() const { return done_; }
  // Returns true if the last call failed.
  bool failed() const { return failed_; }
  // How a publish is unlike those of other trainers.
  enum class Disagreement {
    kNone,
    kHoldsCommit,
    kNoDigests,
    kNextVersion,
    kNotANumber,  // Among what is quantised.
    kOtherBytes,
  };
  void Disagree(Disagreement how) { disagreement_ = how; }  // In the next publish.
  // Makes the user publish no version up to this one.
  void LeaveOut(uint64_t version) { done_ = version; }

  // --- a worker's user ---

  const WorkerRank& worker() const { return *worker_; }
  enum class Mood { kAccept, kRefuse, kVeto, kSilent };
  void SetMood(Mood mood) { mood_ = mood; }  // For the next update.
  // Begins to read what is shown. Another reader begins before the last one ends, again and again
  // until the worker refuses, unless `next`, the time of each, is zero.
  void TakeSnapshot(absl::Duration time, absl::Duration next);
  // From now on, until its next stream, it does not say that it has stopped relaying.
  void Mute() { mute_ = true; }
  // Pauses the worker if that can be done now.
  void Pause(absl::Duration time);

  // --- anybody's user ---

  void Leave();
  // Makes the user accept updates again, and ends the reader at the next step.
  void Calm();
  // Makes the next PLAN or START be one that is not for this rank.
  enum class Misdirected { kNothing, kPlan, kStart, kBuffer };
  void Misdirect(Misdirected what) { misdirected_ = what; }

  // --- invariants ---

  // Checks that every call has ended by its deadline.
  void CheckCalls();
  // Checks that lanes and regions have not grown.
  void CheckGrowth();

 private:
  struct Pending {
    Notice notice;
    absl::Time at;
  };

  // RankActions.
  void OpenStream() override { stream_ = host_.OpenStream(this); }
  void CloseStream() override { host_.CloseStream(std::exchange(stream_, 0)); }
  void Send(proto::RankMessage message) override {
    if (message.has_publish()) {
      compositions_[message.publish().attempt()] = message.publish().composition();
    }
    if (!mute_ || !message.has_relay_stopped()) host_.Send(stream_, std::move(message));
  }
  void Tell(Notice notice) override { notices_.push_back(std::move(notice)); }

  std::vector<MemorySpan> MakeMemory(const Manifest& manifest);
  absl::Status MakeTrainer(SessionOptions options);
  absl::Status MakeWorker(SessionOptions options);
  void CheckBases();
  void CheckShown(absl::string_view when);
  // Returns the bytes of a version as this rank has to show it, one vector a region. They stay
  // valid until it is asked for another version.
  const std::vector<std::vector<std::byte>>& BytesToShow(uint64_t version);
  void HandleNotices();
  void HandleNotice(const Notice& notice);
  void HandleUpdateNotice(const Notice& notice);
  void AnswerVerify(uint64_t request);
  // Changes a message that is to be misdirected.
  void CheckComposition(const proto::Start& start);
  proto::ControllerMessage Received(proto::ControllerMessage message);
  void Resume();
  void GiveAnswers();
  void EndReader();
  void GiveWord(uint64_t version);
  // A worker that fetches does so again and again.
  bool MayFetch() const;
  void Fetch();
  // Gives commands that do not fit the state of the rank: they end, and do nothing.
  void TryWhatDoesNotFit();
  // Returns true for the versions that all trainers hold.
  bool Holds(uint64_t version) const { return job_.held && !job_.images && version % 2 == 0; }
  // Returns by how many versions the workers that count may be behind a version; 0: by any.
  uint64_t MaxBehind(uint64_t version) const {
    return job_.BoundsStaleness() ? 1 + version % 2 : 0;
  }
  // The tensors may change from now on.
  void ChangeTensors(absl::string_view what);

  Run& run_;
  const Job& job_;
  ProcessHost& host_;
  const RankId place_;
  RankId id_;
  const uint64_t incarnation_;
  const std::string name_;
  std::unique_ptr<FaultyFabric> fabric_;
  std::map<uint64_t, uint64_t> compositions_;  // What it has published, by attempt.
  // The last result of BytesToShow(). It is compared after every step, and changes with a version.
  struct {
    RankId id;
    uint64_t version = 0;
    std::vector<std::vector<std::byte>> bytes;
  } checked_;
  std::vector<std::vector<std::byte>> memory_;  // A trainer's tensors, or the engine's memory.
  std::unique_ptr<TrainerRank> trainer_;
  std::unique_ptr<WorkerRank> worker_;
  std::deque<Notice> notices_;

  uint64_t stream_ = 0;
  bool joined_ = false;
  bool ended_ = false;
  bool left_ = false;
  bool leaving_ = false;
  bool mute_ = false;
  Misdirected misdirected_ = Misdirected::kNothing;
  bool replaced_ = false;
  bool was_replaced_ = false;
  size_t born_ = 0;
  absl::Time stopped_until_ = absl::InfinitePast();
  bool interrupted_ = false;
  absl::Time here_since_ = absl::InfiniteFuture();
  absl::Time looks_away_until_ = absl::InfinitePast();
  std::map<uint64_t, absl::Time> due_;  // Calls that have to end: by token, until when.
  uint64_t last_token_ = 0;

  uint64_t publishing_ = 0;  // The version whose call has not ended.
  uint64_t publish_token_ = 0;
  uint64_t done_ = 0;
  bool failed_ = false;
  uint64_t image_ =
      0;  // The version that groups can get from the trainer's image; 0: perhaps none.
  std::set<std::pair<uint64_t, std::string>> outcomes_;  // Told since the stream was opened.
  Disagreement disagreement_ = Disagreement::kNone;
  uint64_t unfit_token_ = 0;                        // Of a command that has to fail.
  absl::Time proceed_at_ = absl::InfiniteFuture();  // Then the publish need not wait any more.
  bool holding_ = false;
  absl::Time release_at_ = absl::InfiniteFuture();

  uint64_t fetch_token_ = 0;  // The token of the fetch that has not ended; 0 if there is none.
  absl::Time fetch_at_ = absl::InfinitePast();
  uint64_t wanted_ = 0;  // The least version that answers it.

  std::vector<Pending> pending_answers_;
  Mood mood_ = Mood::kAccept;
  uint64_t last_shown_ = 0;
  absl::Time shown_at_ = absl::InfiniteFuture();  // InfiniteFuture if its user does not use it yet.
  std::optional<Snapshot> snapshot_;
  absl::Time snapshot_until_;
  absl::Duration next_reader_;
  absl::Time paused_until_ = absl::InfiniteFuture();
};

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_PROCESS_H_
