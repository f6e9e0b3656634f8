// SPDX-License-Identifier: Apache-2.0

// The streams between processes and the controller: messages, their order, and their ends.
#ifndef WAYBILL_TESTING_SIMULATION_STREAMS_H_
#define WAYBILL_TESTING_SIMULATION_STREAMS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "core/protocol/coordinator.h"
#include "testing/simulation/faults.h"
#include "testing/simulation/process.h"
#include "testing/simulation/run.h"

namespace waybill::simulation {

// A message that some faults wait for, and the process that got it or sent it.
struct Delivery {
  const Process* process;
  Trigger trigger;
};

// Each stream has a number, which the controller knows as its connection. A stream that does not
// exist any more swallows what is sent on it.
class Streams {
 public:
  explicit Streams(Run* run) : run_(*run) {}

  // --- the process's end ---

  uint64_t Open(Process* process);
  void Send(uint64_t id, proto::RankMessage message);
  void Close(uint64_t id);
  // Must be called before the process is destroyed.
  void Forget(const Process* process);

  // --- the controller's end ---

  void SendToRank(uint64_t id, proto::ControllerMessage message);
  // Ends the stream for the rank once the rank has got its messages.
  void CloseByController(uint64_t id);
  // Ends every stream: what the controller had not read is lost, and some of what it had sent.
  void OnControllerCrash();

  // --- faults ---

  // Ends the stream for both; some of what was on its way is lost.
  void Break(uint64_t id);
  // Ends the stream for the rank; the controller hears of it then.
  void Lose(uint64_t id, absl::Time until);
  // Delivers nothing on the stream until then.
  void Hold(uint64_t id, absl::Time until);

  // --- time ---

  // Delivers some messages of each stream. `coordinator` is null while no controller runs.
  std::vector<Delivery> DeliverSome(Coordinator* coordinator);
  // Returns when the first stream that is held goes on.
  absl::Time next_event() const;

 private:
  struct Stream {
    Process* process = nullptr;  // Null once it does not listen any more.
    bool to_controller_open = true;
    bool to_rank_open = true;
    bool opened = false;  // OnStreamOpen() was called.
    std::deque<proto::RankMessage> to_controller;
    std::deque<proto::ControllerMessage> to_rank;
    absl::Time held_until = absl::InfinitePast();
    bool controller_closed = false;
  };

  Stream* Find(uint64_t id);
  bool Deliver(uint64_t id, Stream& stream, Coordinator* coordinator,
               std::vector<Delivery>& deliveries);
  bool DeliverToController(uint64_t id, Stream& stream, Coordinator* coordinator,
                           std::vector<Delivery>& deliveries);
  bool DeliverToRank(uint64_t id, Stream& stream, const Coordinator* coordinator,
                     std::vector<Delivery>& deliveries);
  void EndForRank(uint64_t id, Stream& stream);

  Run& run_;
  std::map<uint64_t, Stream> streams_;
};

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_STREAMS_H_
