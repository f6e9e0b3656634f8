#include "core/plan/cover.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// Along which the boxes begin at the most places.
int DimensionWithMostCuts(const std::vector<Box>& boxes) {
  int best = 0;
  size_t most = 0;
  std::vector<int64_t> cuts;
  for (int d = 0; d < boxes.front().dimensions(); ++d) {
    cuts.clear();
    for (const Box& box : boxes) cuts.push_back(box.begin(d));
    std::sort(cuts.begin(), cuts.end());
    const auto count = static_cast<size_t>(std::unique(cuts.begin(), cuts.end()) - cuts.begin());
    if (count > most) {
      most = count;
      best = d;
    }
  }
  return best;
}

absl::Status CheckDisjoint(std::vector<Box>& boxes) {
  if (boxes.size() < 2 || boxes.front().dimensions() == 0) {
    return boxes.size() < 2 ? absl::OkStatus() : absl::InternalError("a scalar is written twice");
  }
  const int d = DimensionWithMostCuts(boxes);
  std::sort(boxes.begin(), boxes.end(),
            [d](const Box& a, const Box& b) { return a.begin(d) < b.begin(d); });
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size() && boxes[j].begin(d) < boxes[i].end(d); ++j) {
      if (!Intersect(boxes[i], boxes[j]).empty()) {
        return absl::InternalError(
            absl::StrCat(ToString(boxes[i]), " and ", ToString(boxes[j]), " are both written"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShard(const ShardView& shard, std::vector<Box>& boxes) {
  int64_t elements = 0;
  for (const Box& box : boxes) {
    if (!shard.box.Contains(box)) {
      return absl::InternalError(absl::StrCat("a route brings ", ToString(box)));
    }
    elements += box.element_count();
  }
  WAYBILL_RETURN_IF_ERROR(CheckDisjoint(boxes));
  if (elements != shard.box.element_count()) {
    return absl::InternalError(
        absl::StrCat(elements, " of ", shard.box.element_count(), " elements are written"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCover(const Plan& plan, absl::Span<const Manifest* const> workers) {
  std::vector<std::vector<Box>> boxes;
  for (uint32_t worker = 0; worker < workers.size(); ++worker) {
    const Manifest& manifest = *workers[worker];
    const RouteTable& routes = plan.workers[worker];
    boxes.assign(manifest.shard_count(), {});
    for (uint32_t i = 0; i < routes.size(); ++i) {
      const RouteView route = routes[i];
      if (!route.witness) boxes[route.destination_shard].push_back(route.box);
    }
    for (uint32_t s = 0; s < manifest.shard_count(); ++s) {
      const ShardView shard = manifest.shard(s);
      WAYBILL_RETURN_IF_ERROR(
          While(absl::StrCat("tensor \"", manifest.tensor_name(shard.tensor_index), "\": worker ",
                             worker, " wants ", ToString(shard.box)),
                CheckShard(shard, boxes[s])));
    }
  }
  return absl::OkStatus();
}

}  // namespace waybill
