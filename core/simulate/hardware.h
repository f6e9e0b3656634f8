// SPDX-License-Identifier: Apache-2.0

// The machines, the network and the controller that an update is simulated on.
//
// Rates are in bytes per second and times in seconds, unless a name says otherwise. The defaults
// are those of published hardware; README.md says where each comes from.
#ifndef WAYBILL_CORE_SIMULATE_HARDWARE_H_
#define WAYBILL_CORE_SIMULATE_HARDWARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/rank_id.h"

namespace waybill::simulate {

enum class MemoryPlace : uint8_t { kHost, kGpu };

// The rates at which one thread of a host, or the kernels of one GPU, work while their neighbours
// work too. They count the bytes that are read.
struct WorkRates {
  double copy = 0;       // Copies and digests in one pass.
  double transpose = 0;  // Also turns rows into columns.
  double cast = 0;       // Also changes the type.
  double quantise = 0;   // Also finds the scales.
  double digest = 0;     // Only reads.
  double compare = 0;    // Reads a version and the one before it; counts the bytes of one.
};

inline constexpr WorkRates kGpuRates = {.copy = 1.2e12,
                                        .transpose = 1e12,
                                        .cast = 1.2e12,
                                        .quantise = 0.6e12,
                                        .digest = 1.5e12,
                                        .compare = 0.75e12};
inline constexpr WorkRates kHostRates = {
    .copy = 8e9, .transpose = 4e9, .cast = 5e9, .quantise = 2.5e9, .digest = 15e9, .compare = 4e9};

// The hosts of the ranks of one role.
struct Machine {
  uint32_t ranks_per_host = 8;
  // The NICs of a host, which its ranks share evenly. Without any, ranks talk by TCP.
  uint32_t nics_per_host = 8;
  double nic = 50e9;      // One NIC, in one direction, as it is sold.
  double pcie = 55e9;     // One rank, in one direction.
  double nvlink = 450e9;  // One GPU, in one direction.

  MemoryPlace memory = MemoryPlace::kGpu;
  bool nic_reaches_gpu =
      true;  // Otherwise bytes cross PCIe into the host's memory and leave there.
  WorkRates rates = kGpuRates;
  uint32_t threads = 1;  // Those of a rank that stage or verify in the host's memory.
  uint32_t cores = 0;    // Of a host, which all of its ranks share; 0: never the limit.
  uint64_t ring_bytes = uint64_t{32} << 20;  // A trainer's staging ring.

  // Returns how many threads of a rank copy, stage or verify. A GPU counts as one.
  uint32_t working_threads() const { return memory == MemoryPlace::kGpu ? 1 : threads; }
};

struct Network {
  // How much of a NIC's rate is payload: headers and acknowledgements take the rest.
  double efficiency = 0.945;
  double latency = 5e-6;   // From a NIC to another.
  double message = 90e-9;  // What a NIC needs for a write, however short.
  // The time that the sender's progress thread needs to post a write. Over TCP the receiver's
  // progress thread needs as much to take it.
  double post = 150e-9;
  // A host's rack has so many hosts of its role; 0: all hosts are in one rack.
  uint32_t hosts_per_rack = 0;
  // Hosts of trainers and of workers stand in the same racks: rack r has the r-th `hosts_per_rack`
  // hosts of either role, and ranks within a rack reach each other without its uplinks. Otherwise
  // trainers and workers are in different racks.
  bool shared_racks = false;
  // The NICs of a rack over its uplinks. With 1 the uplinks are never the limit.
  double oversubscription = 1;
  // Where more than `incast_senders` writes wait for a NIC, congestion control keeps it at this
  // part of its rate.
  double incast_efficiency = 0.97;
  uint32_t incast_senders = 8;
  // One connection of ranks without NICs: what the sending and the receiving thread each manage.
  double tcp_send = 1.5e9;
  double tcp_receive = 1.5e9;
};

struct Control {
  double message = 200e-6;  // From a rank to the controller or back, with both ends' threads.
  double handle = 8e-6;     // What the controller needs for one message.
  double record = 2e-3;     // Until a decision is on the disk.
  double prepare = 50e-6;   // Until a worker has a buffer ready.
  double show = 20e-6;      // Flipping an index.
};

// A rank whose NICs and threads are slower than those of the others.
struct Straggler {
  RankId rank;
  double slowdown = 1;  // 2: they take twice as long.
};

struct Hardware {
  Machine trainers;
  Machine workers;
  // Trainers and workers are on one host, as those of `waybill demo`. Host memory is then reached
  // by mappings, and GPUs by NVLink, unless `by_tcp`.
  bool one_host = false;
  bool by_tcp = false;
  Network network;
  Control control;
  std::vector<Straggler> stragglers;
};

// Returns the name of the rack that a rank shares with ranks of the other role, for its manifest.
// Empty if racks are not shared, or if all ranks are on one host.
std::string SharedRackOf(const Hardware& hardware, Role role, uint32_t rank);

// kInvalidArgument, naming the number: a rate that is not above 0, fewer NICs on a host than ranks,
// an oversubscription below 1, shared racks without a number of hosts, a straggler that is not
// among the ranks.
absl::Status CheckHardware(const Hardware& hardware, uint32_t trainers, uint32_t workers);

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_HARDWARE_H_
