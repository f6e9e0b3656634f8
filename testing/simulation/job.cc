#include "testing/simulation/job.h"

#include <algorithm>
#include <array>

namespace waybill::simulation {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 12;
static_assert(kRows >= 4 && kColumns >= 4);  // Every rank holds some of each.

uint16_t ValueOf(int64_t element, uint64_t version) {
  return static_cast<uint16_t>(version * 1009 + static_cast<uint64_t>(element) * 31);
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

Job DrawJob(std::mt19937_64& random) {
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
  return job;
}

Manifest OneShard(const Box& box) {
  Manifest m;
  m.AddRegion("w", static_cast<uint64_t>(box.element_count()) * 2);
  m.AddShard(m.AddTensor("w", {kRows, kColumns}, Dtype::kBf16), {Dtype::kBf16}, box,
             {0, 0, {box.extent(1), 1}});
  return m;
}

std::vector<std::byte> BytesOf(const Box& box, uint64_t version) {
  std::vector<std::byte> bytes;
  for (int64_t r = box.begin(0); r < box.end(0); ++r) {
    for (int64_t c = box.begin(1); c < box.end(1); ++c) {
      const uint16_t value = ValueOf(r * kColumns + c, version);
      bytes.push_back(static_cast<std::byte>(value & 0xFF));
      bytes.push_back(static_cast<std::byte>(value >> 8));
    }
  }
  return bytes;
}

}  // namespace waybill::simulation
