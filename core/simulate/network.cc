// SPDX-License-Identifier: Apache-2.0

#include "core/simulate/network.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waybill::simulate {
namespace {

using Kind = PortLoad::Kind;

// Links that carry as much in either direction: what a worker relays leaves while more arrives.
enum LinkDirection : uint32_t { kOwn = 0, kRelayed = 1 };
constexpr uint32_t DirectionOf(Role sender) { return sender == Role::kWorker ? kRelayed : kOwn; }

std::string NameOf(Kind kind, Role role, uint32_t index, uint32_t sub) {
  const absl::string_view who = Name(role);
  const absl::string_view relayed = sub == kRelayed ? ", what it relays" : "";
  switch (kind) {
    case Kind::kEgress:
      return absl::StrCat("egress of ", who, " ", index, ", NIC ", sub);
    case Kind::kIngress:
      return absl::StrCat("ingress of ", who, " ", index, ", NIC ", sub);
    case Kind::kPcie:
      return absl::StrCat("PCIe of ", who, " ", index, relayed);
    case Kind::kUplink:
      return absl::StrCat("uplinks of ", who, " rack ", index);
    case Kind::kDownlink:
      return absl::StrCat("downlinks of ", who, " rack ", index);
    case Kind::kNvlink:
      return absl::StrCat("NVLink of ", who, " ", index, relayed);
  }
  return "";
}

}  // namespace

uint32_t Fabrics::nics_per_rank(Role role) const {
  return machine(role).nics_per_host / machine(role).ranks_per_host;
}

uint32_t Fabrics::host_of(Role role, uint32_t rank) const {
  return hardware_.one_host ? 0 : rank / machine(role).ranks_per_host;
}

double Fabrics::slowdown(Role role, uint32_t rank) const {
  for (const Straggler& straggler : hardware_.stragglers) {
    if (straggler.rank.role == role && straggler.rank.rank == rank) return straggler.slowdown;
  }
  return 1;
}

Port* Fabrics::Find(Kind kind, Role role, uint32_t index, uint32_t sub, double rate) {
  std::unique_ptr<Port>& port = ports_[{kind, role, index, sub}];
  if (port == nullptr)
    port = std::make_unique<Port>(kind, role, NameOf(kind, role, index, sub), rate);
  return port.get();
}

Port* Fabrics::NicPort(Kind kind, Role role, uint32_t rank, uint32_t nic) {
  return Find(kind, role, rank, nic,
              machine(role).nic * hardware_.network.efficiency / slowdown(role, rank));
}

std::vector<Port*> Fabrics::Path(Role sender_role, uint32_t sender, uint32_t sender_nic,
                                 uint32_t worker, uint32_t receiver_nic) {
  const Machine& from = machine(sender_role);
  const Machine& to = hardware_.workers;
  if (hardware_.one_host) {
    return {Find(Kind::kNvlink, sender_role, sender, DirectionOf(sender_role), from.nvlink),
            Find(Kind::kNvlink, Role::kWorker, worker, 0, to.nvlink)};
  }
  std::vector<Port*> path = {NicPort(Kind::kEgress, sender_role, sender, sender_nic)};
  // A NIC in the host reads the host's memory without the rank's PCIe link to its GPU.
  if (from.memory == MemoryPlace::kGpu && from.nic_reaches_gpu) {
    path.push_back(Find(Kind::kPcie, sender_role, sender, DirectionOf(sender_role), from.pcie));
  }
  const Network& network = hardware_.network;
  if (network.hosts_per_rack > 0) {
    const auto rack_rate = [&](const Machine& machine) {
      return machine.nic * network.efficiency * machine.nics_per_host * network.hosts_per_rack /
             network.oversubscription;
    };
    const uint32_t from_rack = host_of(sender_role, sender) / network.hosts_per_rack;
    const uint32_t to_rack = host_of(Role::kWorker, worker) / network.hosts_per_rack;
    const bool may_be_one_rack = network.shared_racks || sender_role == Role::kWorker;
    if (!may_be_one_rack || from_rack != to_rack) {
      path.push_back(Find(Kind::kUplink, sender_role, from_rack, 0, rack_rate(from)));
      path.push_back(Find(Kind::kDownlink, Role::kWorker, to_rack, 0, rack_rate(to)));
    }
  }
  path.push_back(NicPort(Kind::kIngress, Role::kWorker, worker, receiver_nic));
  if (to.memory == MemoryPlace::kGpu) {
    path.push_back(Find(Kind::kPcie, Role::kWorker, worker, 0, to.pcie));
  }
  return path;
}

void Fabrics::Send(uint64_t lane, Message message) {
  Port* port = message.path.front();
  port->lanes_[lane].push_back(std::move(message));
  port->load_.waiting = std::max(port->load_.waiting, ++port->waiting_);
  Serve(port);
}

// Serves the next message of the next lane.
void Fabrics::Serve(Port* port) {
  if (port->serving_ || port->lanes_.empty()) return;
  auto next = port->lanes_.upper_bound(port->served_lane_);
  if (next == port->lanes_.end()) next = port->lanes_.begin();
  Message message = std::move(next->second.front());
  port->served_lane_ = next->first;
  next->second.pop_front();
  if (next->second.empty()) port->lanes_.erase(next);
  --port->waiting_;
  port->serving_ = true;
  const double seconds = std::max(static_cast<double>(message.bytes) / port->load_.rate,
                                  static_cast<double>(message.writes) * hardware_.network.message);
  port->load_.bytes += message.bytes;
  port->load_.busy += seconds;
  const int64_t end_ns = time_.now_ns() + VirtualTime::Nanoseconds(seconds);
  time_.At(end_ns, [this, port] {
    port->serving_ = false;
    Serve(port);
  });
  const int64_t latency_ns = VirtualTime::Nanoseconds(hardware_.network.latency);
  time_.At(time_.now_ns() + latency_ns,
           [this, message = std::move(message), tail = end_ns + latency_ns]() mutable {
             Enter(std::move(message), 1, tail);
           });
}

// The head of a message reaches a port; its tail leaves the port before at `tail_ns`.
void Fabrics::Enter(Message message, size_t hop, int64_t tail_ns) {
  if (hop == message.path.size()) {
    time_.At(tail_ns, std::move(message.landed));
    return;
  }
  Port* port = message.path[hop];
  double rate = port->load_.rate;
  port->load_.waiting = std::max(port->load_.waiting, ++port->waiting_);
  if (port->load_.kind == Kind::kIngress && port->waiting_ > hardware_.network.incast_senders) {
    rate *= hardware_.network.incast_efficiency;
  }
  const double seconds = static_cast<double>(message.bytes) / rate;
  port->load_.bytes += message.bytes;
  port->load_.busy += seconds;
  port->free_ns_ = std::max(port->free_ns_, time_.now_ns()) + VirtualTime::Nanoseconds(seconds);
  const int64_t head_ns = port->free_ns_ - VirtualTime::Nanoseconds(seconds);
  tail_ns = std::max(port->free_ns_, tail_ns);
  time_.At(port->free_ns_, [port] { --port->waiting_; });
  time_.At(head_ns, [this, message = std::move(message), hop, tail_ns]() mutable {
    Enter(std::move(message), hop + 1, tail_ns);
  });
}

std::vector<PortLoad> Fabrics::loads() const {
  std::vector<PortLoad> loads;
  for (const auto& [key, port] : ports_) {
    if (port->load_.bytes > 0) loads.push_back(port->load_);
  }
  return loads;
}

}  // namespace waybill::simulate
