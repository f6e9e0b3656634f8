// SPDX-License-Identifier: Apache-2.0

// The network: NICs, PCIe, NVLink and the uplinks of racks, each of which serves bytes at a rate.
//
// A message leaves by its sender's NIC, which serves its lanes in turn, one message each. It then
// crosses the other ports of its path, each of which serves what reaches it first, and all of which
// work on it at the same time: it is through when the last byte is. A port downstream holds
// messages without a limit; what limits them is how many posts a sender has on their way.
#ifndef WAYBILL_CORE_SIMULATE_NETWORK_H_
#define WAYBILL_CORE_SIMULATE_NETWORK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "core/simulate/hardware.h"
#include "core/simulate/virtual_time.h"

namespace waybill::simulate {

// What a direction of a link, or a NIC, has carried.
struct PortLoad {
  enum class Kind : uint8_t { kEgress, kIngress, kPcie, kUplink, kDownlink, kNvlink };
  Kind kind = Kind::kEgress;
  Role role = Role::kTrainer;  // Whose it is.
  std::string name;
  double rate = 0;
  uint64_t bytes = 0;
  double busy = 0;       // Seconds.
  uint32_t waiting = 0;  // The most messages that waited for it.
};

class Port {
 public:
  Port(PortLoad::Kind kind, Role role, std::string name, double rate) {
    load_ = {kind, role, std::move(name), rate};
  }

  const PortLoad& load() const { return load_; }

 private:
  friend class Fabrics;

  PortLoad load_;
  int64_t free_ns_ = 0;
  uint32_t waiting_ = 0;

  // Of a sender's NIC: its lanes with messages, in turn.
  bool serving_ = false;
  std::map<uint64_t, std::deque<struct Message>> lanes_;
  uint64_t served_lane_ = 0;
};

struct Message {
  uint64_t bytes = 0;
  uint64_t writes = 1;
  std::vector<Port*> path;       // The first is the sender's NIC.
  std::function<void()> landed;  // The last byte is in the receiver's memory.
};

// All ports of a job.
class Fabrics {
 public:
  Fabrics(VirtualTime* time, const Hardware& hardware) : time_(*time), hardware_(hardware) {}

  // The number of NICs of each rank of a role.
  uint32_t nics_per_rank(Role role) const;
  uint32_t host_of(Role role, uint32_t rank) const;
  // The path from a NIC of a trainer, or of a worker that relays, to one of a worker. A rank's NICs
  // are counted from 0.
  std::vector<Port*> Path(Role sender_role, uint32_t sender, uint32_t sender_nic, uint32_t worker,
                          uint32_t receiver_nic);
  // Sends a message; `lane` tells the lanes of its first port apart.
  void Send(uint64_t lane, Message message);

  std::vector<PortLoad> loads() const;
  double slowdown(Role role, uint32_t rank) const;

 private:
  const Machine& machine(Role role) const {
    return role == Role::kTrainer ? hardware_.trainers : hardware_.workers;
  }
  Port* Find(PortLoad::Kind kind, Role role, uint32_t index, uint32_t sub, double rate);
  Port* NicPort(PortLoad::Kind kind, Role role, uint32_t rank, uint32_t nic);
  void Serve(Port* port);
  void Enter(Message message, size_t hop, int64_t tail_ns);

  VirtualTime& time_;
  const Hardware hardware_;
  std::map<std::tuple<PortLoad::Kind, Role, uint32_t, uint32_t>, std::unique_ptr<Port>> ports_;
};

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_NETWORK_H_
