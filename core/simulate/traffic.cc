// SPDX-License-Identifier: Apache-2.0

#include "core/simulate/traffic.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/plan/chunks.h"

namespace waybill::simulate {
namespace {

void AddRoutes(const RouteTable& routes, std::map<uint32_t, PairTraffic>& by_worker) {
  for (uint32_t r = 0; r < routes.size(); ++r) {
    PairTraffic& pair = by_worker[routes.receiver(r)];
    ++pair.routes;
    if (routes.witness(r)) continue;
    const RouteShape shape = routes.shape(r);
    const uint64_t bytes = shape.size_bytes();
    const uint64_t read = static_cast<uint64_t>(shape.element_count()) * shape.source_element_bytes;
    pair.bytes += bytes;
    const bool direct = IsDirect(routes, r);
    if (!direct) pair.staged_bytes += bytes;
    if (shape.transform == Transform::kQuantise) {
      pair.quantised_read += read;
    } else if (shape.transposed()) {
      pair.transposed_read += read;
    } else if (shape.transform != Transform::kNone) {
      pair.cast_read += read;
    } else {
      pair.copied_read += read;
      if (!direct) pair.packed_read += read;
    }
  }
}

void CountWrites(const RouteTable& routes, std::map<uint32_t, PairTraffic>& by_worker) {
  const ChunkList list = CutIntoChunks(routes, kChunkBytes);
  std::vector<ChunkWrite> writes;
  for (const Chunk& chunk : list.chunks) {
    writes.clear();
    AppendWrites(
        routes, list, chunk, [&](uint32_t route) { return IsDirect(routes, route); }, writes);
    by_worker[chunk.receiver].writes += writes.size();
  }
}

}  // namespace

uint64_t Traffic::total_bytes() const {
  uint64_t total = 0;
  for (const uint64_t bytes : worker_bytes()) total += bytes;
  return total;
}

const PairTraffic* Traffic::Find(uint32_t trainer, uint32_t worker) const {
  const auto pair = std::lower_bound(
      pairs.begin(), pairs.end(), std::pair(trainer, worker),
      [](const PairTraffic& p, const auto& key) { return std::pair(p.trainer, p.worker) < key; });
  const bool found = pair != pairs.end() && pair->trainer == trainer && pair->worker == worker;
  return found ? &*pair : nullptr;
}

std::vector<uint64_t> Traffic::trainer_bytes() const {
  std::vector<uint64_t> bytes(trainers());
  for (const PairTraffic& pair : pairs) bytes[pair.trainer] += pair.bytes;
  return bytes;
}

std::vector<uint64_t> Traffic::worker_bytes() const {
  std::vector<uint64_t> bytes(workers());
  for (const auto* list : {&pairs, &relays}) {
    for (const PairTraffic& pair : *list) bytes[pair.worker] += pair.bytes;
  }
  return bytes;
}

Traffic TrafficOf(const Plan& plan, std::vector<uint64_t> trainer_held_bytes,
                  std::vector<uint64_t> worker_held_bytes) {
  Traffic traffic;
  traffic.trainer_held_bytes = std::move(trainer_held_bytes);
  traffic.worker_held_bytes = std::move(worker_held_bytes);
  for (uint32_t t = 0; t < plan.sender_count(); ++t) {
    const RouteTable routes = plan.SenderRoutes(t);
    std::map<uint32_t, PairTraffic> by_worker;
    AddRoutes(routes, by_worker);
    CountWrites(routes, by_worker);
    for (auto& [worker, pair] : by_worker) {
      if (pair.bytes == 0) continue;
      const bool relayed = t >= plan.holder_count();
      pair.trainer = relayed ? t - plan.holder_count() : t;
      pair.worker = worker;
      (relayed ? traffic.relays : traffic.pairs).push_back(pair);
    }
  }
  for (uint32_t t = 0; plan.quantises() && t < traffic.trainers(); ++t) {
    const Exchange exchange = plan.SenderExchange(t);
    for (const MaximaMessage& message : exchange.outgoing) {
      if (!message.into.empty()) continue;
      ++traffic.maxima_messages;
      traffic.maxima += message.block_count();
      traffic.maxima_steps = std::max(traffic.maxima_steps, message.step + 1);
    }
  }
  traffic.planned_ratio = plan.balance().ratio();
  return traffic;
}

}  // namespace waybill::simulate
