// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/job.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/tensor/quantisation.h"
#include "testing/simulation/faults.h"

namespace waybill::simulation {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 12;
static_assert(kRows >= 4 && kColumns >= 4);  // Every rank holds some of each.

// Both trainers and workers cut its blocks.
constexpr Quantisation kQuantisation = {.block_rows = 3, .block_columns = 5};
constexpr Extents2 kBlock = {3, 5};

uint16_t ValueOf(int64_t element, uint64_t version) {
  return static_cast<uint16_t>(version * 1009 + static_cast<uint64_t>(element) * 31);
}

// Every fourth element changes from one version to the next, by one unit.
uint16_t SlowValueOf(int64_t element, uint64_t version) {
  const auto e = static_cast<uint64_t>(element);
  return static_cast<uint16_t>(e * 31 + (version + e) / 4);
}

// The elements of quantised jobs are E4M3 numbers times the scale, and one of each block is the
// largest number: quantising finds just these numbers and that scale.
float ScaleOf(uint64_t version) { return std::ldexp(1.0f, static_cast<int>(version % 16)); }

uint8_t E4m3Of(int64_t row, int64_t column, uint64_t version) {
  constexpr uint8_t kLargest = 0x7E;
  if (row % kBlock.rows == 0 && column % kBlock.columns == 0) return kLargest;
  return static_cast<uint8_t>(ValueOf(row * kColumns + column, version) % kLargest);
}

uint16_t Bf16Of(int64_t row, int64_t column, uint64_t version) {
  const uint8_t e4m3 = E4m3Of(row, column, version);
  const int exponent = e4m3 >> 3, mantissa = e4m3 & 7;
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                    : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value * ScaleOf(version)) >> 16);
}

template <typename Number>
void Append(Number number, std::vector<std::byte>& bytes) {
  const auto raw = std::bit_cast<std::array<std::byte, sizeof(Number)>>(number);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

}  // namespace

const Group& Job::GroupNamed(const std::string& name) const {
  return *std::find_if(groups.begin(), groups.end(),
                       [&](const Group& group) { return group.name == name; });
}

std::vector<RankId> Job::Ranks() const {
  std::vector<RankId> ranks;
  for (uint32_t t = 0; t < trainers; ++t) ranks.push_back({Role::kTrainer, t});
  for (const Group& group : groups) {
    for (uint32_t w = 0; w < group.size; ++w) ranks.push_back({Role::kWorker, w, group.name});
  }
  return ranks;
}

uint32_t Job::PeersOf(const RankId& id) const {
  if (id.role == Role::kWorker) return trainers + (relays ? GroupNamed(id.group).size : 0);
  uint32_t workers = 0;
  for (const Group& group : groups) workers += group.size;
  return workers;
}

uint32_t Job::WorldOf(const RankId& id) const {
  return id.role == Role::kTrainer ? trainers : GroupNamed(id.group).size;
}

Box Job::BoxOf(const RankId& id) const {
  if (id.role == Role::kTrainer) {
    const int64_t parts = trainers / replicas, part = id.rank % parts;
    return Box({kRows * part / parts, 0}, {kRows * (part + 1) / parts, kColumns});
  }
  if (relays) return Box({0, 0}, {kRows, kColumns});
  const int64_t part = id.rank, parts = GroupNamed(id.group).size;
  return Box({0, kColumns * part / parts}, {kRows, kColumns * (part + 1) / parts});
}

bool Job::HoldsTheSame(const RankId& id) const {
  return id.role == Role::kTrainer ? trainers == replicas : relays || WorldOf(id) == 1;
}

Job DrawJob(uint64_t seed, std::mt19937_64& random) {
  const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
  Job job;
  job.trainers = 1 + below(4);
  job.replicas = job.trainers % 2 == 0 && below(2) == 0 ? 2 : 1;
  const uint32_t groups = 1 + below(2);
  job.relays = below(4) == 0;
  for (uint32_t g = 0; g < groups; ++g) {
    job.groups.push_back(
        {std::string(1, static_cast<char>('a' + g)), (job.relays ? 2 : 1) + below(2)});
  }
  job.most_ranks = job.Ranks().size();
  job.mode = std::array{Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace}[below(3)];
  job.can_map = below(2) == 0;
  job.asked = below(3) == 0;
  job.required = below(3) == 0;
  job.held = below(2) == 0;
  // Draws would change what later ones make of a seed.
  job.images = seed % 8 == 7;
  job.changes = seed % 16 == 15;
  job.chooses_changes = seed % 32 == 31;
  job.selects = seed % 64 == 15;
  job.fetches = seed % 32 == 23;
  job.varied = IsVaried(seed);
  if (!job.varied) return job;
  std::mt19937_64 rare(seed ^ 0x94D049BB133111EBu);
  job.quantised = rare() % 3 == 0;
  job.any_rank = rare() % 3 == 0;
  job.controllers = 1 + rare() % 2;
  return job;
}

Manifest OneShard(const Box& box) {
  Manifest m;
  m.AddRegion("w", static_cast<uint64_t>(box.element_count()) * 2);
  m.AddShard(m.AddTensor("w", {kRows, kColumns}, Dtype::kBf16), {Dtype::kBf16}, box,
             {0, 0, {box.extent(1), 1}});
  return m;
}

Manifest Job::ManifestOf(const RankId& id) const {
  const Box box = BoxOf(id);
  if (!quantised || id.role == Role::kTrainer) return OneShard(box);
  const Box cells = CellsMeeting(box, kBlock);
  Manifest m;
  m.AddTensor("w", {kRows, kColumns}, Dtype::kBf16);
  m.AddRegion("w", static_cast<uint64_t>(box.element_count()));
  m.AddRegion("scales", static_cast<uint64_t>(cells.element_count()) * sizeof(float));
  m.AddShard(0, Format::Quantised(kQuantisation), box, {0, 0, {box.extent(1), 1}});
  m.AddShard(0, Format::Scales(kQuantisation), cells, {1, 0, {cells.extent(1), 1}});
  return m;
}

std::vector<std::vector<std::byte>> Job::BytesOf(const RankId& id, uint64_t version) const {
  const Box box = BoxOf(id);
  const bool scaled = quantised && id.role == Role::kWorker;
  std::vector<std::vector<std::byte>> regions(scaled ? 2 : 1);
  for (int64_t r = box.begin(0); r < box.end(0); ++r) {
    for (int64_t c = box.begin(1); c < box.end(1); ++c) {
      if (scaled) {
        Append(E4m3Of(r, c, version), regions[0]);
      } else {
        const int64_t element = r * kColumns + c;
        Append(quantised ? Bf16Of(r, c, version)
               : changes ? SlowValueOf(element, version)
                         : ValueOf(element, version),
               regions[0]);
      }
    }
  }
  if (!scaled) return regions;
  for (int64_t n = CellsMeeting(box, kBlock).element_count(); n > 0; --n) {
    Append(ScaleOf(version), regions[1]);
  }
  return regions;
}

}  // namespace waybill::simulation
