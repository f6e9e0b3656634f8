// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/region_cover.h"

#include <algorithm>
#include <utility>

namespace waybill {
namespace {

using Fault = std::optional<CoverFault>;
using Kind = CoverFault::Kind;

// Each level of periods has a smaller stride. Real arrays have two or three levels.
constexpr int kMaxLevels = 2 * kMaxDimensions;

void SortByBegin(absl::Span<ByteClaim> claims) {
  std::sort(claims.begin(), claims.end(), [](const ByteClaim& a, const ByteClaim& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.owner < b.owner;
  });
}

// The bytes from the first to the last of what an axis repeats, axis `from` and later ones.
uint64_t SpanBytes(const ByteClaim& claim, uint32_t from) {
  uint64_t span = claim.run_bytes;
  for (uint32_t a = from; a < claim.axis_count; ++a) {
    span += (claim.axes[a].extent - 1) * claim.axes[a].stride_bytes;
  }
  return span;
}

// Whether what each axis repeats ends before its next repetition begins.
bool IsNested(const ByteClaim& claim) {
  for (uint32_t a = 0; a < claim.axis_count; ++a) {
    if (claim.axes[a].stride_bytes < SpanBytes(claim, a + 1)) return false;
  }
  return true;
}

void RemoveFirstAxis(ByteClaim& claim) {
  --claim.axis_count;
  std::copy_n(claim.axes.begin() + 1, claim.axis_count, claim.axes.begin());
}

// A claim cut into periods: the same bytes of `count` periods, from the `first` on.
struct Periodic {
  uint64_t first;
  uint64_t count;
  ByteClaim within;  // Begins count from the beginning of a period.

  uint64_t end() const { return first + count; }
};

// Returns nullopt if the claim is not the same in each period that it reaches.
std::optional<Periodic> CutIntoPeriods(const ByteClaim& claim, uint64_t origin, uint64_t period) {
  Periodic result{.first = (claim.begin - origin) / period, .count = 1, .within = claim};
  ByteClaim& within = result.within;
  within.begin = (claim.begin - origin) % period;
  if (claim.axis_count > 0) {
    ByteClaim::Axis& outer = within.axes[0];
    if (outer.stride_bytes == period) {
      result.count = outer.extent;
      RemoveFirstAxis(within);
    } else if (within.end() > period && period % outer.stride_bytes == 0) {
      const uint64_t steps = period / outer.stride_bytes;
      if (outer.extent % steps != 0) return std::nullopt;
      result.count = outer.extent / steps;
      outer.extent = steps;
    }
  }
  if (within.end() > period) return std::nullopt;
  return result;
}

// Visits the runs of a nested claim in the order of memory.
struct RunWalk {
  explicit RunWalk(const ByteClaim& claim_to_walk) : claim(claim_to_walk), at(claim.begin) {}

  // Returns false behind the last run.
  bool Step() {
    for (uint32_t a = claim.axis_count; a > 0; --a) {
      const ByteClaim::Axis& axis = claim.axes[a - 1];
      if (++index[a - 1] < axis.extent) {
        at += axis.stride_bytes;
        return true;
      }
      at -= (axis.extent - 1) * axis.stride_bytes;
      index[a - 1] = 0;
    }
    return false;
  }

  ByteClaim claim;
  uint64_t at;
  std::array<uint64_t, kMaxDimensions> index{};
};

class Checker {
 public:
  explicit Checker(CoverBudget& budget) : budget_(budget) {}

  // Checks that `claims` fill [0, size), which lies `base` bytes into the region.
  Fault CheckFilled(std::vector<ByteClaim> claims, uint64_t size, uint64_t base, int level) {
    SortByBegin(absl::MakeSpan(claims));
    uint64_t covered = 0;
    uint32_t previous = 0;
    for (size_t i = 0; i < claims.size();) {
      const ByteClaim& claim = claims[i];
      if (claim.begin != covered) return Mismatch(claim, covered, previous, base);
      uint64_t end = claim.end();
      size_t last = i + 1;
      if (claim.axis_count > 0) {
        for (; last < claims.size() && claims[last].begin < end; ++last) {
          end = std::max(end, claims[last].end());
        }
        Fault fault = CheckInterleaved(absl::MakeConstSpan(claims).subspan(i, last - i), covered,
                                       end, base, level);
        if (fault) return fault;
      }
      covered = end;
      previous = claims[last - 1].owner;
      i = last;
    }
    if (covered == size) return std::nullopt;
    return CoverFault{.kind = Kind::kHole, .begin = base + covered, .end = base + size};
  }

 private:
  // A claim whose first run does not begin where the earlier ones end.
  static Fault Mismatch(const ByteClaim& claim, uint64_t covered, uint32_t previous,
                        uint64_t base) {
    if (claim.begin > covered) {
      return CoverFault{.kind = Kind::kHole,
                        .begin = base + covered,
                        .end = base + claim.begin,
                        .second = claim.owner};
    }
    return CoverFault{.kind = Kind::kOverlap,
                      .begin = base + claim.begin,
                      .end = base + std::min(covered, claim.begin + claim.run_bytes),
                      .first = previous,
                      .second = claim.owner};
  }

  static Fault Fragmented(absl::Span<const ByteClaim> claims, uint64_t begin, uint64_t end,
                          uint64_t base) {
    return CoverFault{.kind = Kind::kFragmented,
                      .begin = base + begin,
                      .end = base + end,
                      .first = claims[0].owner};
  }

  // Claims whose bytes [begin, end) have the others' in between: all of them are to fill it.
  Fault CheckInterleaved(absl::Span<const ByteClaim> claims, uint64_t begin, uint64_t end,
                         uint64_t base, int level) {
    if (!budget_.Take(claims.size())) return Fragmented(claims, begin, end, base);
    uint64_t period = 0;
    bool nested = true;
    for (const ByteClaim& claim : claims) {
      if (claim.axis_count > 0) period = std::max(period, claim.axes[0].stride_bytes);
      nested = nested && IsNested(claim);
    }
    std::vector<Periodic> periodic;
    if (nested && level < kMaxLevels) {
      periodic.reserve(claims.size());
      for (const ByteClaim& claim : claims) {
        const auto cut = CutIntoPeriods(claim, begin, period);
        if (!cut) break;
        periodic.push_back(*cut);
      }
    }
    if (periodic.size() < claims.size()) return CheckRunByRun(claims, begin, end, base);
    return CheckPeriods(periodic, period, end - begin, base + begin, level);
  }

  // Periods with the same claims are the same: one of them is checked.
  Fault CheckPeriods(absl::Span<const Periodic> claims, uint64_t period, uint64_t size,
                     uint64_t base, int level) {
    const uint64_t whole = size / period, rest = size % period;
    std::vector<uint64_t> cuts = {0, whole};
    if (rest != 0) cuts.push_back(whole + 1);
    for (const Periodic& claim : claims) {
      cuts.push_back(claim.first);
      cuts.push_back(claim.end());
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const uint64_t at = base + cuts[i] * period;
      if (!budget_.Take(claims.size())) {
        return CoverFault{.kind = Kind::kFragmented,
                          .begin = at,
                          .end = base + size,
                          .first = claims[0].within.owner};
      }
      std::vector<ByteClaim> within;
      for (const Periodic& claim : claims) {
        if (claim.first <= cuts[i] && cuts[i] < claim.end()) within.push_back(claim.within);
      }
      Fault fault = CheckFilled(std::move(within), cuts[i] == whole ? rest : period, at, level + 1);
      if (fault) return fault;
    }
    return std::nullopt;
  }

  // Compares the claims' runs one by one, in the order of memory.
  Fault CheckRunByRun(absl::Span<const ByteClaim> claims, uint64_t begin, uint64_t end,
                      uint64_t base) {
    std::vector<RunWalk> walks;
    for (const ByteClaim& claim : claims) {
      if (!AppendWalks(claim, walks)) return Fragmented(claims, begin, end, base);
    }
    const auto later = [](const RunWalk& a, const RunWalk& b) {
      return a.at != b.at ? a.at > b.at : a.claim.owner > b.claim.owner;
    };
    std::make_heap(walks.begin(), walks.end(), later);
    uint64_t covered = begin;
    uint32_t previous = claims[0].owner;
    while (!walks.empty()) {
      if (!budget_.Take(1)) return Fragmented(claims, covered, end, base);
      std::pop_heap(walks.begin(), walks.end(), later);
      RunWalk& walk = walks.back();
      if (walk.at != covered) {
        ByteClaim run = walk.claim;
        run.begin = walk.at;
        return Mismatch(run, covered, previous, base);
      }
      covered += walk.claim.run_bytes;
      previous = walk.claim.owner;
      if (walk.Step()) {
        std::push_heap(walks.begin(), walks.end(), later);
      } else {
        walks.pop_back();
      }
    }
    return std::nullopt;
  }

  // Appends walks that together visit every run of the claim, each in the order of memory. Returns
  // false if the budget does not allow as many as that takes.
  bool AppendWalks(const ByteClaim& claim, std::vector<RunWalk>& walks) {
    if (!budget_.Take(1)) return false;
    if (IsNested(claim)) {
      walks.emplace_back(claim);
      return true;
    }
    ByteClaim repeated = claim;
    RemoveFirstAxis(repeated);
    for (uint64_t i = 0; i < claim.axes[0].extent; ++i) {
      if (!AppendWalks(repeated, walks)) return false;
      repeated.begin += claim.axes[0].stride_bytes;
    }
    return true;
  }

  CoverBudget& budget_;
};

}  // namespace

uint64_t ByteClaim::end() const { return begin + SpanBytes(*this, 0); }

std::optional<ByteClaim> MakeByteClaim(uint32_t owner, uint64_t offset_bytes,
                                       absl::Span<const int64_t> extents,
                                       absl::Span<const int64_t> strides, uint32_t element_bytes) {
  ByteClaim claim{.owner = owner, .begin = offset_bytes, .run_bytes = element_bytes};
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] <= 0) return std::nullopt;
    if (extents[d] == 1) continue;
    const ByteClaim::Axis axis{static_cast<uint64_t>(extents[d]),
                               static_cast<uint64_t>(strides[d]) * element_bytes};
    uint32_t at = claim.axis_count++;
    for (; at > 0 && claim.axes[at - 1].stride_bytes < axis.stride_bytes; --at) {
      claim.axes[at] = claim.axes[at - 1];
    }
    claim.axes[at] = axis;
  }
  while (claim.axis_count > 0 && claim.axes[claim.axis_count - 1].stride_bytes == claim.run_bytes) {
    claim.run_bytes *= claim.axes[--claim.axis_count].extent;
  }
  // Merges outer axes, from the inside.
  uint32_t kept = claim.axis_count;
  for (uint32_t a = claim.axis_count; a > 1; --a) {
    const ByteClaim::Axis outer = claim.axes[a - 2];
    ByteClaim::Axis& inner = claim.axes[kept - 1];
    if (outer.stride_bytes / inner.extent == inner.stride_bytes &&
        outer.stride_bytes % inner.extent == 0) {
      inner.extent *= outer.extent;
    } else {
      claim.axes[--kept - 1] = outer;
    }
  }
  if (claim.axis_count > 0) {
    const uint32_t removed = kept - 1;
    claim.axis_count -= removed;
    std::copy_n(claim.axes.begin() + removed, claim.axis_count, claim.axes.begin());
  }
  return claim;
}

bool CoverBudget::Take(uint64_t pieces) {
  if (pieces > pieces_left) return false;
  pieces_left -= pieces;
  return true;
}

std::optional<CoverFault> CheckRegionCover(std::vector<ByteClaim> claims, uint64_t size_bytes,
                                           CoverBudget& budget) {
  for (const ByteClaim& claim : claims) {
    if (claim.axis_count == 0 || claim.axes[claim.axis_count - 1].stride_bytes >= claim.run_bytes) {
      continue;
    }
    const uint64_t second = claim.begin + claim.axes[claim.axis_count - 1].stride_bytes;
    return CoverFault{.kind = Kind::kOverlap,
                      .begin = second,
                      .end = claim.begin + claim.run_bytes,
                      .first = claim.owner,
                      .second = claim.owner};
  }
  return Checker(budget).CheckFilled(std::move(claims), size_bytes, 0, 0);
}

}  // namespace waybill
