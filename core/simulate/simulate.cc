// SPDX-License-Identifier: Apache-2.0

#include "core/simulate/simulate.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/chunks.h"
#include "core/simulate/findings.h"
#include "core/simulate/ranks.h"
#include "core/simulate/world.h"
#include "core/tensor/manifest.h"
#include "core/tensor/manifest_codec.h"

namespace waybill::simulate {
namespace {

// The NICs of a rank, by which the production rules join its lanes.
std::vector<Nic> NicsOf(const World& world, Role role) {
  const Machine& machine =
      role == Role::kTrainer ? world.hardware.trainers : world.hardware.workers;
  std::vector<Nic> nics;
  if (world.carrier() != Carrier::kNics || world.hardware.one_host) return nics;
  for (uint32_t n = 0; n < world.fabrics.nics_per_rank(role); ++n) {
    nics.push_back({.name = absl::StrCat("n", n),
                    .rail = n,
                    .bytes_per_second = static_cast<uint64_t>(machine.nic)});
  }
  return nics;
}

proto::Nics Encode(const std::vector<Nic>& nics) {
  proto::Nics encoded;
  for (const Nic& nic : nics) {
    proto::UsableNic* usable = encoded.add_nics();
    usable->set_name(nic.name);
    usable->set_rail(nic.rail);
    usable->set_bytes_per_second(nic.bytes_per_second);
  }
  return encoded;
}

// One tensor of one element for each peer; a rank without any holds one that nobody wants.
EncodedManifest MakeSkeleton(const World& world, Role role, uint32_t rank,
                             const std::vector<uint32_t>& peers, const std::vector<Nic>& nics) {
  Manifest manifest;
  const bool one_host = world.hardware.one_host;
  manifest.set_host(one_host ? "host"
                             : absl::StrCat(Name(role), "s ", world.fabrics.host_of(role, rank)));
  manifest.nics() = nics;
  const uint64_t count = std::max<uint64_t>(1, peers.size());
  manifest.AddRegion("skeleton", count * 2);
  const auto add = [&](const std::string& name, uint64_t at) {
    manifest.AddShard(manifest.AddTensor(name, {1}, Dtype::kBf16), {Dtype::kBf16}, Box({0}, {1}),
                      {0, at * 2, {1}});
  };
  for (uint64_t i = 0; i < peers.size(); ++i) {
    const auto [trainer, worker] =
        role == Role::kTrainer ? std::pair(rank, peers[i]) : std::pair(peers[i], rank);
    add(absl::StrCat(trainer, "/", worker), i);
  }
  if (peers.empty()) add(absl::StrCat(Name(role), " ", rank, " without a peer"), 0);
  return EncodeInParts(manifest);
}

// All ranks, trainers first, with what they hold and move.
std::vector<RankResult> DescribeRanks(const World& world) {
  const Traffic& traffic = world.traffic;
  std::vector<RankResult> ranks;
  for (uint32_t t = 0; t < traffic.trainers(); ++t) {
    RankResult& rank = ranks.emplace_back();
    rank.id = {Role::kTrainer, t};
    rank.held_bytes = traffic.trainer_held_bytes[t];
  }
  for (uint32_t w = 0; w < traffic.workers(); ++w) {
    RankResult& rank = ranks.emplace_back();
    rank.id = {Role::kWorker, w, std::string(kDefaultGroup)};
    rank.held_bytes = traffic.worker_held_bytes[w];
    rank.buffer_bytes = world.mode == Mode::kInPlace ? 0 : rank.held_bytes;
  }
  for (const PairTraffic& pair : traffic.pairs) {
    for (RankResult* rank : {&ranks[pair.trainer], &ranks[traffic.trainers() + pair.worker]}) {
      rank->moved_bytes += world.CarriedBytes(pair, pair.bytes);
      rank->ledger_bytes += pair.routes * sizeof(LedgerEntry);
    }
  }
  for (const PairTraffic& pair : traffic.relays) {
    RankResult& sender = ranks[traffic.trainers() + pair.trainer];
    RankResult& worker = ranks[traffic.trainers() + pair.worker];
    sender.relayed_bytes += pair.bytes;
    worker.moved_bytes += pair.bytes;
    for (RankResult* rank : {&sender, &worker}) {
      rank->ledger_bytes += pair.routes * sizeof(LedgerEntry);
    }
  }
  return ranks;
}

absl::Status CheckTraffic(const Traffic& traffic) {
  const std::vector<uint64_t> bytes = traffic.worker_bytes();
  for (size_t w = 0; w < bytes.size(); ++w) {
    if (bytes[w] > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("simulate: worker ", w, " receives nothing from any trainer"));
  }
  return absl::OkStatus();
}

// The protocol connects each worker to a trainer. One that gets everything from workers, because
// there are more of them than pieces to deal, gets nothing from a trainer.
Traffic WithATrainerForEach(Traffic traffic) {
  std::vector<bool> has_one(traffic.workers());
  for (const PairTraffic& pair : traffic.pairs) has_one[pair.worker] = true;
  for (uint32_t w = 0; w < traffic.workers(); ++w) {
    if (!has_one[w]) traffic.pairs.push_back({.trainer = w % traffic.trainers(), .worker = w});
  }
  std::sort(traffic.pairs.begin(), traffic.pairs.end(),
            [](const PairTraffic& a, const PairTraffic& b) {
              return std::pair(a.trainer, a.worker) < std::pair(b.trainer, b.worker);
            });
  return traffic;
}

uint64_t PieceBytes(const Traffic& traffic, const SimulateOptions& options) {
  const uint64_t wanted = traffic.total_bytes() / std::max<uint64_t>(1, options.most_pieces);
  return std::max<uint64_t>(kChunkBytes, (wanted + kCutBytes - 1) / kCutBytes * kCutBytes);
}

}  // namespace

absl::StatusOr<Result> Simulate(const Traffic& planned, const Hardware& hardware,
                                const SimulateOptions& options) {
  if (absl::Status s = CheckHardware(hardware, planned.trainers(), planned.workers()); !s.ok()) {
    return s;
  }
  if (absl::Status s = CheckTraffic(planned); !s.ok()) return s;
  const Traffic traffic = WithATrainerForEach(planned);
  if (options.changed && (hardware.trainers.memory == MemoryPlace::kGpu ||
                          hardware.workers.memory == MemoryPlace::kGpu)) {
    return absl::InvalidArgumentError(
        "simulate: `changed` needs trainers and workers with `memory: host`; on GPUs, what changed "
        "is not encoded");
  }
  World world(&traffic, hardware, options, PieceBytes(traffic, options));
  Result result;
  std::vector<std::vector<uint32_t>> workers_of(traffic.trainers()), trainers_of(traffic.workers());
  for (const PairTraffic& pair : traffic.pairs) {
    workers_of[pair.trainer].push_back(pair.worker);
    trainers_of[pair.worker].push_back(pair.trainer);
    result.writes += pair.writes;
  }
  for (const PairTraffic& pair : traffic.relays) result.writes += pair.writes;
  result.ranks = DescribeRanks(world);
  std::vector<std::unique_ptr<SendingRank>> senders;
  std::vector<std::unique_ptr<ReceivingRank>> receivers;
  for (RankResult& rank : result.ranks) {
    const Role role = rank.id.role;
    const std::vector<Nic> nics = NicsOf(world, role);
    const auto& peers = role == Role::kTrainer ? workers_of : trainers_of;
    EncodedManifest skeleton = MakeSkeleton(world, role, rank.id.rank, peers[rank.id.rank], nics);
    if (role == Role::kTrainer) {
      senders.push_back(
          std::make_unique<SendingRank>(&world, &rank, std::move(skeleton), Encode(nics)));
    } else {
      receivers.push_back(
          std::make_unique<ReceivingRank>(&world, &rank, std::move(skeleton), Encode(nics)));
      world.receivers.push_back(receivers.back().get());
    }
  }
  for (const auto& sender : senders) sender->Join();
  for (const auto& receiver : receivers) receiver->Join();
  const auto run_until = [&](const auto& done) {
    while (world.status.ok() && !done()) {
      if (!world.time.Step()) world.Fail(absl::InternalError("simulate: nothing happens any more"));
    }
    return world.status.ok();
  };
  const uint32_t ranks = static_cast<uint32_t>(result.ranks.size());
  if (!run_until([&] { return world.joined == ranks; })) return world.status;
  world.published_at = world.time.now();
  for (const auto& sender : senders) sender->Publish();
  if (!run_until([&] { return world.shown == traffic.workers(); })) return world.status;

  result.seconds = world.time.now() - world.published_at;
  result.sent_seconds = world.last_sent - world.published_at;
  result.publish_seconds =
      world.images ? world.last_copied - world.published_at : result.sent_seconds;
  result.total_bytes = traffic.total_bytes();
  result.ports = world.fabrics.loads();
  result.piece_bytes = world.piece_bytes;
  result.pieces = world.pieces;
  result.events = world.time.count();
  AddFindings(world, result);
  return result;
}

}  // namespace waybill::simulate
