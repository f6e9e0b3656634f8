// SPDX-License-Identifier: Apache-2.0

// What the ranks of a simulated job share.
#ifndef WAYBILL_CORE_SIMULATE_WORLD_H_
#define WAYBILL_CORE_SIMULATE_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/protocol/update.h"
#include "core/simulate/changed_part.h"
#include "core/simulate/control_plane.h"
#include "core/simulate/hardware.h"
#include "core/simulate/network.h"
#include "core/simulate/processors.h"
#include "core/simulate/result.h"
#include "core/simulate/simulate.h"
#include "core/simulate/traffic.h"
#include "core/simulate/virtual_time.h"

namespace waybill::simulate {

// How trainers' data reaches workers.
enum class Carrier : uint8_t {
  kNics,    // By RDMA, or by NVLink within a host.
  kTcp,     // By the progress threads' sockets.
  kMapped,  // By stores into host memory of the same host.
};

class ReceivingRank;

// A message from a trainer, or from a worker that relays, to a worker.
struct Transfer {
  uint32_t worker = 0;
  uint64_t lane = 0;  // Tells the lanes of the sender's NIC apart.
  uint64_t bytes = 0;
  uint64_t writes = 0;
  std::vector<Port*> path;  // By NICs only.
};

struct World {
  World(const Traffic* all_traffic, const Hardware& job_hardware, const SimulateOptions& options,
        uint64_t bytes_of_piece)
      : traffic(*all_traffic),
        hardware(job_hardware),
        mode(options.mode),
        digests(options.digests),
        images(options.images || options.changed),
        changed(options.changed),
        piece_bytes(bytes_of_piece),
        fabrics(&time, hardware),
        control(&time, hardware.control) {}

  Carrier carrier() const {
    if (hardware.by_tcp) return Carrier::kTcp;
    if (hardware.one_host) {
      return hardware.trainers.memory == MemoryPlace::kHost ? Carrier::kMapped : Carrier::kNics;
    }
    const bool nics = hardware.trainers.nics_per_host > 0 && hardware.workers.nics_per_host > 0;
    return nics ? Carrier::kNics : Carrier::kTcp;
  }
  // Returns false if trainers store or stage everything, and send nothing from their tensors.
  bool sends_from_tensors() const {
    const bool staged =
        hardware.trainers.memory == MemoryPlace::kGpu && !hardware.trainers.nic_reaches_gpu;
    return carrier() != Carrier::kMapped && !staged;
  }
  // Returns true if only what changed travels between the two.
  bool Encodes(const PairTraffic& pair) const {
    return changed && digests && mode != Mode::kInPlace && carrier() != Carrier::kMapped &&
           pair.quantised_read == 0;
  }
  // Returns how many bytes travel for so many of the pair's.
  uint64_t CarriedBytes(const PairTraffic& pair, uint64_t bytes) const {
    if (!Encodes(pair)) return bytes;
    return static_cast<uint64_t>(EncodedBytes(static_cast<double>(bytes), *changed));
  }
  uint64_t PiecesOf(uint64_t bytes) const { return (bytes + piece_bytes - 1) / piece_bytes; }
  // The number of pieces in which a trainer sends what it has for a worker.
  uint64_t PiecesOf(const PairTraffic& pair) const {
    if (!sends_from_tensors() || Encodes(pair)) return PiecesOf(pair.bytes);
    return PiecesOf(pair.staged_bytes) + PiecesOf(pair.bytes - pair.staged_bytes);
  }
  // The cores that a rank's threads run on.
  Cores* CoresOf(Role role, uint32_t rank) {
    const uint32_t host = fabrics.host_of(role, rank);
    const Role owner = hardware.one_host ? Role::kTrainer : role;
    std::unique_ptr<Cores>& cores = hosts[{owner, host}];
    const Machine& machine = role == Role::kTrainer ? hardware.trainers : hardware.workers;
    if (cores == nullptr) cores = std::make_unique<Cores>(&time, machine.cores);
    return cores.get();
  }
  // Widens a rank's span of a stage by work from `begin` until now.
  void Note(RankResult& rank, Stage stage, double begin, double busy) {
    Span& span = rank.spans[static_cast<size_t>(stage)];
    begin -= published_at;
    const double end = time.now() - published_at;
    span = {span.end == 0 ? begin : std::min(span.begin, begin), std::max(span.end, end),
            span.busy + busy};
  }
  void Fail(const absl::Status& why) {
    if (status.ok()) status = why;
  }

  const Traffic& traffic;
  const Hardware hardware;
  const Mode mode;
  const bool digests;
  const bool images;
  const std::optional<double> changed;
  const uint64_t piece_bytes;

  VirtualTime time;
  Fabrics fabrics;
  ControlPlane control;
  std::map<std::pair<Role, uint32_t>, std::unique_ptr<Cores>> hosts;
  std::vector<ReceivingRank*> receivers;  // By rank.
  double published_at = 0;
  uint32_t joined = 0;
  uint32_t shown = 0;
  double last_sent = 0;
  double last_copied = 0;  // When the last trainer had an image.
  uint64_t pieces = 0;
  // The message with data that landed last.
  double last_landed = 0;
  RankId last_sender;
  uint32_t last_worker = 0;
  std::vector<Port*> last_path;
  absl::Status status;  // Why the update cannot go on.
};

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_WORLD_H_
