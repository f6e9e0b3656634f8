// SPDX-License-Identifier: Apache-2.0

#include "core/plan/lanes.h"

#include <algorithm>
#include <map>
#include <utility>

namespace waybill {
namespace {

using Pairs = std::vector<std::pair<size_t, size_t>>;

// Joins what is free on both sides and equal by `key`; true keys first come, first served.
template <typename Same>
void Join(const std::vector<Nic>& from, const std::vector<Nic>& to,
          std::vector<uint32_t>& uses_from, std::vector<uint32_t>& uses_to, Pairs& pairs,
          Same same) {
  for (size_t i = 0; i < from.size(); ++i) {
    for (size_t j = 0; j < to.size(); ++j) {
      if (uses_from[i] > 0 || uses_to[j] > 0 || !same(from[i], to[j])) continue;
      ++uses_from[i];
      ++uses_to[j];
      pairs.emplace_back(i, j);
    }
  }
}

size_t LeastUsed(const std::vector<Nic>& nics, const std::vector<uint32_t>& uses, const Nic& like) {
  size_t best = 0;
  const auto cost = [&](size_t i) {
    return std::pair(uses[i], nics[i].numa_node == like.numa_node ? 0 : 1);
  };
  for (size_t i = 1; i < nics.size(); ++i) {
    if (cost(i) < cost(best)) best = i;
  }
  return best;
}

Pairs JoinNics(const std::vector<Nic>& from, const std::vector<Nic>& to) {
  std::vector<uint32_t> uses_from(from.size()), uses_to(to.size());
  Pairs pairs;
  Join(from, to, uses_from, uses_to, pairs,
       [](const Nic& a, const Nic& b) { return a.rail == b.rail; });
  Join(from, to, uses_from, uses_to, pairs,
       [](const Nic& a, const Nic& b) { return a.numa_node == b.numa_node; });
  Join(from, to, uses_from, uses_to, pairs, [](const Nic&, const Nic&) { return true; });
  // The side that has more shares the other's.
  for (size_t i = 0; i < from.size(); ++i) {
    if (uses_from[i] > 0) continue;
    const size_t j = LeastUsed(to, uses_to, from[i]);
    ++uses_to[j];
    pairs.emplace_back(i, j);
  }
  for (size_t j = 0; j < to.size(); ++j) {
    if (uses_to[j] > 0) continue;
    const size_t i = LeastUsed(from, uses_from, to[j]);
    ++uses_from[i];
    pairs.emplace_back(i, j);
  }
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

}  // namespace

std::vector<LanePath> PlanLanes(const Manifest& sender, const Manifest& receiver,
                                const LaneOptions& options) {
  if (sender.nics().empty() && receiver.nics().empty()) {
    const bool one_host = !sender.host().empty() && sender.host() == receiver.host();
    return std::vector<LanePath>(one_host ? 1 : options.lanes_without_nics);
  }
  const std::vector<Nic> unnamed(1);
  const std::vector<Nic>& from = sender.nics().empty() ? unnamed : sender.nics();
  const std::vector<Nic>& to = receiver.nics().empty() ? unnamed : receiver.nics();
  const Pairs pairs = JoinNics(from, to);
  std::vector<uint32_t> uses_from(from.size()), uses_to(to.size());
  for (const auto& [i, j] : pairs) {
    uses_from[i] += options.lanes_per_path;
    uses_to[j] += options.lanes_per_path;
  }
  std::vector<LanePath> lanes;
  bool all_known = true;
  for (const auto& [i, j] : pairs) {
    const uint64_t speed =
        std::min(from[i].bytes_per_second / uses_from[i], to[j].bytes_per_second / uses_to[j]);
    all_known = all_known && speed > 0;
    lanes.insert(lanes.end(), options.lanes_per_path, {from[i].name, to[j].name, speed});
  }
  if (!all_known) {
    for (LanePath& lane : lanes) lane.bytes_per_second = 0;
  }
  return lanes;
}

std::vector<uint32_t> ShareOut(absl::Span<const Chunk> chunks, absl::Span<const LanePath> lanes) {
  std::vector<uint32_t> lane_of(chunks.size(), 0);
  std::vector<double> busy(lanes.size(), 0);
  for (size_t c = 0; c < chunks.size(); ++c) {
    const auto end = [&](size_t lane) {
      const auto speed = static_cast<double>(lanes[lane].bytes_per_second);
      const auto bytes = static_cast<double>(chunks[c].size_bytes);
      return busy[lane] + (speed > 0 ? bytes / speed : bytes);
    };
    size_t best = 0;
    for (size_t lane = 1; lane < lanes.size(); ++lane) {
      if (end(lane) < end(best)) best = lane;
    }
    busy[best] = end(best);
    lane_of[c] = static_cast<uint32_t>(best);
  }
  return lane_of;
}

}  // namespace waybill
