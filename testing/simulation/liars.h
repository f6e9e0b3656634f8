// SPDX-License-Identifier: Apache-2.0

// Strangers that have the job's token: they join as groups of their own, and lie.
#ifndef WAYBILL_TESTING_SIMULATION_LIARS_H_
#define WAYBILL_TESTING_SIMULATION_LIARS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/protocol/coordinator.h"
#include "testing/simulation/run.h"

namespace waybill::simulation {

class Liars {
 public:
  static constexpr size_t kMost = 3;  // At a time.

  explicit Liars(Run* run) : run_(*run) {}

  static bool IsTheirs(absl::string_view group) { return !group.empty() && group[0] == 'z'; }

  // They come, and lie until then.
  void Begin(absl::Time until) { until_ = std::max(until_, until); }
  // They go.
  void End(Coordinator* coordinator);
  void OnControllerCrash() { liars_.clear(); }
  void OnClose(ConnectionId connection) { liars_.erase(connection); }
  // Takes a message if it is for one of them.
  bool Hear(ConnectionId connection, const proto::ControllerMessage& message);
  // Tells a lie now and then. `coordinator` is null while no controller runs.
  void Step(Coordinator* coordinator);

 private:
  struct Liar {
    uint32_t world = 1;
    bool stranger = false;  // It wants a tensor that no trainer has.
    uint64_t epoch = 0;     // Of the last plan that it was sent.
    proto::Round round;     // Of the last update.
    std::deque<proto::RankMessage> answers;
  };

  void Join(Coordinator* coordinator);
  // Changes a JOIN so that it cannot be accepted.
  void Spoil(proto::Join& join);
  proto::RankMessage Lie(const Liar& liar);
  uint32_t AnyNumber();
  uint64_t AnyVersion();
  proto::Round AnyRound(const Liar& liar);

  Run& run_;
  absl::Time until_ = absl::InfinitePast();
  std::map<ConnectionId, Liar> liars_;
};

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_LIARS_H_
