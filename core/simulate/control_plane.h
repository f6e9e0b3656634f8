// SPDX-License-Identifier: Apache-2.0

// The controller of a simulated job, and the streams between it and the ranks: the production
// coordinator on the virtual clock.
#ifndef WAYBILL_CORE_SIMULATE_CONTROL_PLANE_H_
#define WAYBILL_CORE_SIMULATE_CONTROL_PLANE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "core/protocol/coordinator.h"
#include "core/protocol/rank_session.h"
#include "core/simulate/hardware.h"
#include "core/simulate/virtual_time.h"

namespace waybill::simulate {

// Calls a state machine at its next deadline.
class Alarm {
 public:
  // `ring` calls it if its deadline has come. The clock outlives the alarm, which never moves.
  Alarm(VirtualTime* time, std::function<void()> ring) : time_(*time), ring_(std::move(ring)) {}

  void Set(absl::Time deadline);

 private:
  VirtualTime& time_;
  std::function<void()> ring_;
  int64_t set_ns_ = std::numeric_limits<int64_t>::max();
};

class ControlPlane final : public CoordinatorActions {
 public:
  ControlPlane(VirtualTime* time, const Control& control);

  // The rank's end of a stream. It outlives the control plane's events.
  struct Endpoint {
    virtual ~Endpoint() = default;
    virtual void OnOpen() = 0;
    virtual void OnMessage(const proto::ControllerMessage& message) = 0;
    virtual void OnClose() = 0;
  };
  ConnectionId Open(Endpoint* rank);
  void CloseByRank(ConnectionId connection);
  void SendToController(ConnectionId connection, proto::RankMessage message);

  // CoordinatorActions.
  void Send(ConnectionId connection, proto::ControllerMessage message) override;
  void Close(ConnectionId connection) override;
  void Compute(Work work) override;
  void Record(uint64_t ticket, const Decision& decision) override;

 private:
  // Runs `call` once the controller has handled what came before it.
  template <typename Call>
  void Handle(Call call);

  VirtualTime& time_;
  const Control control_;
  Coordinator coordinator_;
  Alarm alarm_;
  int64_t free_ns_ = 0;
  std::vector<Endpoint*> endpoints_;  // By connection; null: closed.
};

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_CONTROL_PLANE_H_
