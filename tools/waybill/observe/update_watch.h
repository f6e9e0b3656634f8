// SPDX-License-Identifier: Apache-2.0

// Measures updates by the messages that a controller receives and sends.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_UPDATE_WATCH_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_UPDATE_WATCH_H_

#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/trace_parent.h"
#include "core/control/controller.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

class WatchListener;

// Thread-safe. Reads no clock: each message comes with its time.
//
// An update here is the update of one group. Catching up is not measured: it brings a version that
// was published before.
class UpdateWatch final : public ControllerObserver {
 public:
  // The parts of an update, in order, and their sum.
  enum class Part : uint8_t {
    kWait,      // From the first PUBLISH of the version to PREPARE.
    kPrepare,   // To the first START: workers get their buffers ready.
    kTransfer,  // To the last worker's ARRIVED: data moves and is verified.
    kDecide,    // To COMMIT: workers vote, trainers decide, and the decision is recorded.
    kShow,      // To the last worker's SHOWN.
    kTotal,
  };
  static constexpr size_t kPartCount = 6;

  struct Rank {
    std::string name;   // As "trainer 0"; "worker" if the controller has yet to choose its number.
    std::string group;  // Empty for trainers.
  };

  // An update of a group: one that goes on, or one that has ended.
  struct Progress {
    std::string group;
    uint64_t version = 0;
    bool running = false;
    size_t workers = 0;  // The number of workers that take part.
    size_t arrived = 0;  // The number of workers that have received and verified everything.
    // The name and the duration of each part that has begun, in order. The last one may go on.
    std::vector<std::pair<std::string, absl::Duration>> parts;
    absl::Duration total;  // The sum of the parts.
    std::string error;     // Why the update was given up; empty otherwise.
    absl::Duration age;    // The time since the update ended; 0 while it runs.
    // The span to which the update belongs, if a trainer has named one.
    std::optional<TraceParent> parent = {};
  };

  // The listeners outlive the watch.
  explicit UpdateWatch(std::vector<WatchListener*> listeners = {});

  void OnJoined(ConnectionId connection, const proto::Join& join) override;
  void OnReceived(ConnectionId connection, const proto::RankMessage& message,
                  absl::Time now) override;
  void OnSent(ConnectionId connection, const proto::ControllerMessage& message,
              absl::Time now) override;
  void OnClosed(ConnectionId connection, absl::Time now) override;

  // Forgets the updates that are going on. Must be called before another controller is observed,
  // which numbers its connections anew.
  void Forget();

  std::vector<prometheus::MetricFamily> Collect() const;
  // Returns the running or last update of each group, by the groups' names. A group that has had no
  // update is missing.
  std::vector<Progress> GroupProgress(absl::Time now) const;
  // Returns the last updates that were given up, newest first: at most kMostFailures.
  static constexpr size_t kMostFailures = 32;
  std::vector<Progress> Failures(absl::Time now) const;

 private:
  using Key = std::pair<uint64_t, uint32_t>;  // The epoch and the sequence of a Round.

  struct Update {
    std::string group;
    uint64_t version = 0;
    absl::Time published;
    absl::Time prepared;
    absl::Time started = absl::InfiniteFuture();
    absl::Time arrived = absl::InfiniteFuture();
    absl::Time committed = absl::InfiniteFuture();
    size_t workers = 0;
    std::set<ConnectionId> lacking;    // Workers that have not ARRIVED.
    std::set<ConnectionId> unsettled;  // Workers that have not SHOWN.
    bool whole = true;                 // No worker was lost.
    std::optional<TraceParent> parent = {};
  };
  struct Ended {
    Progress progress;
    absl::Time at;

    Progress At(absl::Time now) const;
  };
  struct Publication {
    absl::Time first;
    std::set<ConnectionId> trainers;
    std::optional<TraceParent> parent = {};  // The first that a trainer named.
  };

  static Key KeyOf(const proto::Round& round) { return {round.epoch(), round.sequence()}; }
  Update* Find(const proto::Round& round);
  void OnPublish(ConnectionId trainer, const proto::Publish& publish, absl::Time now);
  void OnPrepare(ConnectionId worker, const proto::Prepare& prepare, absl::Time now);
  void OnStart(const proto::Start& start, absl::Time now);
  void OnArrived(ConnectionId worker, const proto::Arrived& arrived, absl::Time now);
  void OnReport(ConnectionId connection, const proto::RankReport& report);
  void OnCommit(const proto::Commit& commit, absl::Time now);
  void OnShown(ConnectionId worker, const proto::Shown& shown, absl::Time now);
  void OnFailed(ConnectionId worker, const proto::Failed& failed, absl::Time now);
  void OnAbort(const proto::Abort& abort, absl::Time now);
  // Returns true if nothing of the update is awaited any more.
  static bool LoseWorker(ConnectionId worker, Update& update);
  // Keeps the update as its group's last one.
  void End(std::map<Key, Update>::iterator entry, absl::Time now);
  // Removes the update and tells the listeners.
  Ended Remove(std::map<Key, Update>::iterator entry, const std::string& error, absl::Time now);
  static Progress ProgressOf(const Update& update, absl::Time until);
  void Observe(Part part, absl::Duration duration);

  mutable std::mutex mutex_;
  const std::vector<WatchListener*> listeners_;
  std::map<ConnectionId, Rank> ranks_;
  std::map<Key, Update> updates_;
  std::map<std::string, Ended> ended_;            // The last update of each group.
  std::deque<Ended> failures_;                    // Newest first.
  std::map<uint64_t, Publication> publications_;  // By version.
  std::deque<prometheus::Histogram> durations_;   // By Part.
  prometheus::Histogram stops_;
  std::map<std::string, uint64_t> aborts_;  // By status code.
  uint64_t digest_mismatches_ = 0;
};

// Hears of what becomes of ranks and updates. Called while a controller holds its lock, so it must
// not wait, and must call neither the controller nor the watch.
class WatchListener {
 public:
  virtual ~WatchListener() = default;
  virtual void OnRankJoined(const UpdateWatch::Rank& /*rank*/) {}
  virtual void OnRankGone(const UpdateWatch::Rank& /*rank*/) {}
  // Gets a rank's stages of a version: a trainer's when it has sent the version to all groups, a
  // worker's when it shows the version.
  virtual void OnReported(const UpdateWatch::Rank& /*rank*/, const proto::RankReport& /*report*/) {}
  virtual void OnUpdateEnded(const UpdateWatch::Progress& update) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_UPDATE_WATCH_H_
