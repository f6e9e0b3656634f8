// SPDX-License-Identifier: Apache-2.0

#include "core/simulate/findings.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace waybill::simulate {
namespace {

using Kind = PortLoad::Kind;

constexpr uint64_t kTinyWriteBytes = 64 << 10;

double Imbalance(const std::vector<uint64_t>& bytes) {
  uint64_t most = 0, sum = 0;
  for (const uint64_t b : bytes) {
    most = std::max(most, b);
    sum += b;
  }
  return sum == 0 ? 1
                  : static_cast<double>(most) * static_cast<double>(bytes.size()) /
                        static_cast<double>(sum);
}

Bound FindBound(const World& world, const Result& result, Kind kind) {
  Bound bound;
  for (const PortLoad& port : result.ports) {
    const Hardware& hardware = world.hardware;
    const double nic = (port.role == Role::kTrainer ? hardware.trainers : hardware.workers).nic;
    const double seconds = static_cast<double>(port.bytes) / nic;
    if (port.kind == kind && seconds > bound.seconds) bound = {seconds, port.name};
  }
  return bound;
}

void WarnOfLinks(const Result& result, std::vector<std::string>& warnings) {
  double nic_bound = 0;  // Seconds that the busiest NIC needs at its achievable rate.
  for (const PortLoad& port : result.ports) {
    if (port.kind == Kind::kEgress || port.kind == Kind::kIngress) {
      nic_bound = std::max(nic_bound, static_cast<double>(port.bytes) / port.rate);
    }
  }
  uint32_t crowded = 0;
  std::string first;
  double worst = 0;
  for (const PortLoad& port : result.ports) {
    if (port.kind == Kind::kEgress || port.kind == Kind::kIngress || port.kind == Kind::kNvlink) {
      continue;
    }
    const double seconds = static_cast<double>(port.bytes) / port.rate;
    if (seconds <= nic_bound) continue;
    ++crowded;
    if (seconds > worst) first = port.name;
    worst = std::max(worst, seconds);
  }
  if (crowded > 0) {
    warnings.push_back(absl::StrFormat(
        "crowded links: %d shared links need more time than the busiest NIC (%.3f s); the worst is "
        "%s (%.3f s)",
        crowded, nic_bound, first, worst));
  }
}

void WarnOfWrites(const World& world, std::vector<std::string>& warnings) {
  uint64_t tiny_writes = 0, writes = 0, worst_bytes = 0;
  const PairTraffic* worst = nullptr;
  Role sender = Role::kTrainer;  // The sender of the worst pair.
  const auto look = [&](const std::vector<PairTraffic>& pairs, Role role) {
    for (const PairTraffic& pair : pairs) {
      writes += pair.writes;
      if (pair.writes == 0 || pair.bytes / pair.writes >= kTinyWriteBytes) continue;
      tiny_writes += pair.writes;
      if (worst == nullptr || pair.bytes / pair.writes < worst_bytes) {
        worst = &pair;
        worst_bytes = pair.bytes / pair.writes;
        sender = role;
      }
    }
  };
  look(world.traffic.pairs, Role::kTrainer);
  look(world.traffic.relays, Role::kWorker);
  if (worst == nullptr || world.carrier() == Carrier::kMapped) return;
  warnings.push_back(absl::StrFormat(
      "tiny writes: %d of %d writes are of less than 65536 bytes on average; from %s %d to "
      "worker %d they are of %d",
      tiny_writes, writes, Name(sender), worst->trainer, worst->worker, worst_bytes));
}

void WarnOfBlocks(const World& world, std::vector<std::string>& warnings) {
  if (world.traffic.maxima_messages == 0) return;
  warnings.push_back(absl::StrFormat(
      "blocks cut by shards: %d maxima of split blocks travel in %d messages between trainers, in "
      "%d steps; shards that end at whole blocks need none",
      world.traffic.maxima, world.traffic.maxima_messages, world.traffic.maxima_steps));
}

void WarnOfRanks(const World& world, const Result& result, std::vector<std::string>& warnings) {
  if (result.trainer_imbalance > 1.05) {
    warnings.push_back(absl::StrFormat(
        "imbalance: the busiest trainer sends %.2f times the mean; only it holds what it sends",
        result.trainer_imbalance));
  }
  for (const Straggler& straggler : world.hardware.stragglers) {
    warnings.push_back(absl::StrFormat("straggler: %s takes %.1f times as long as the others",
                                       ToString(straggler.rank), straggler.slowdown));
  }
}

// Which of the path's links was busy for the largest part of the update.
std::string DescribeSlowestPath(const World& world, const Result& result) {
  std::string text = absl::StrFormat("the last bytes come from %s to worker %d after %.3f s",
                                     ToString(world.last_sender), world.last_worker,
                                     world.last_landed - world.published_at);
  const PortLoad* busiest = nullptr;
  for (const Port* port : world.last_path) {
    if (busiest == nullptr || port->load().busy > busiest->busy) busiest = &port->load();
  }
  const bool relayed = world.last_sender.role == Role::kWorker;
  const RankResult& sender =
      result.ranks[(relayed ? world.traffic.trainers() : 0) + world.last_sender.rank];
  const RankResult& worker = result.ranks[world.traffic.trainers() + world.last_worker];
  std::string what;
  double busy = 0;
  const auto consider = [&](double seconds, const std::string& name) {
    if (seconds > busy) {
      busy = seconds;
      what = name;
    }
  };
  if (busiest != nullptr) consider(busiest->busy, busiest->name);
  for (const RankResult* rank : {&sender, &worker}) {
    for (size_t s = 0; s < kStageCount; ++s) {
      const Stage stage = static_cast<Stage>(s);
      if (stage == Stage::kWire || stage == Stage::kCommit) continue;
      consider(rank->spans[s].busy, absl::StrCat("stage \"", Name(stage), "\" of ",
                                                 Name(rank->id.role), " ", rank->id.rank));
    }
  }
  if (busy > 0 && result.seconds > 0) {
    absl::StrAppendFormat(&text, "; on this path, %s is busiest: %.0f %% of the update", what,
                          100 * std::min(1.0, busy / result.seconds));
  }
  return text;
}

}  // namespace

void AddFindings(const World& world, Result& result) {
  result.egress = FindBound(world, result, Kind::kEgress);
  result.ingress = FindBound(world, result, Kind::kIngress);
  result.trainer_imbalance = Imbalance(world.traffic.trainer_bytes());
  result.worker_imbalance = Imbalance(world.traffic.worker_bytes());
  WarnOfLinks(result, result.warnings);
  WarnOfWrites(world, result.warnings);
  WarnOfBlocks(world, result.warnings);
  WarnOfRanks(world, result, result.warnings);
  result.slowest_path = DescribeSlowestPath(world, result);
}

}  // namespace waybill::simulate
