// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstring>
#include <utility>

#include "testing/cluster/cluster_model.h"

namespace waybill {
namespace {

constexpr int64_t kRows = 96;
constexpr int64_t kColumns = 40;
constexpr const char* kNames[] = {"q", "k", "down", "turned"};

// The value of element `number` of tensor `t` in a version: BF16's bits, and the upper half of
// F32's.
uint16_t ValueOf(uint32_t t, int64_t number, uint64_t version) {
  const uint64_t mixed =
      (version * 0x9E3779B97F4A7C15u) ^
      ((uint64_t{t} << 32 | static_cast<uint64_t>(number)) * 0xD6E8FEB86659FD93u);
  return static_cast<uint16_t>((mixed >> 40) & 0x3FFF);  // Finite, positive.
}

// The rows of part `i` of `n`, the last one shorter.
std::pair<int64_t, int64_t> Part(int64_t size, uint32_t i, uint32_t n) {
  const int64_t each = (size + n - 1) / n;
  return {std::min(size, each * i), std::min(size, each * (i + 1))};
}

Manifest TrainerManifest(uint32_t t, const PlainModelOptions& options) {
  const Format format{options.dtype};
  const auto [begin, end] = Part(kRows, t, options.trainers);
  Manifest m;
  const uint64_t each = static_cast<uint64_t>((end - begin) * kColumns) * ElementBytes(format);
  m.AddRegion("memory", 4 * each);
  for (uint32_t i = 0; i < 4; ++i) {
    m.AddTensor(kNames[i], {kRows, kColumns}, format.dtype);
    m.AddShard(i, format, Box({begin, 0}, {end, kColumns}), {0, i * each, {kColumns, 1}});
  }
  return m;
}

// q and k by rows, fused in one region and padded by a row; down by columns; turned whole, stored
// columns first.
Manifest WorkerManifest(uint32_t w, const PlainModelOptions& options) {
  const Format format{Dtype::kBf16};
  const auto [row, row_end] = Part(kRows, w, options.workers);
  const auto [column, column_end] = Part(kColumns, w, options.workers);
  const int64_t rows = row_end - row, columns = column_end - column;
  Manifest m;
  for (const char* name : kNames) m.AddTensor(name, {kRows, kColumns}, Dtype::kBf16);
  m.AddRegion("fused", static_cast<uint64_t>((2 * rows + 1) * kColumns * 2));
  m.AddShard(0, format, Box({row, 0}, {row_end, kColumns}), {0, 0, {kColumns, 1}});
  m.AddShard(1, format, Box({row, 0}, {row_end, kColumns}),
             {0, static_cast<uint64_t>(rows * kColumns * 2), {kColumns, 1}});
  m.AddPadding(2, {kColumns}, {0, static_cast<uint64_t>(2 * rows * kColumns * 2), {1}});
  m.AddRegion("down", static_cast<uint64_t>(kRows * columns * 2));
  m.AddShard(2, format, Box({0, column}, {kRows, column_end}), {1, 0, {columns, 1}});
  m.AddRegion("turned", static_cast<uint64_t>(kRows * kColumns * 2));
  m.AddShard(3, format, Box({0, 0}, {kRows, kColumns}), {2, 0, {1, kRows}});
  return m;
}

// Calls visit(tensor, number in the tensor, region, byte offset) for each element of each shard.
template <typename Visit>
void ForEachElement(const Manifest& manifest, Visit visit) {
  for (uint32_t s = 0; s < manifest.shard_count(); ++s) {
    const ShardView shard = manifest.shard(s);
    for (int64_t r = shard.box.begin(0); r < shard.box.end(0); ++r) {
      for (int64_t c = shard.box.begin(1); c < shard.box.end(1); ++c) {
        const int64_t place = (r - shard.box.begin(0)) * shard.place.strides[0] +
                              (c - shard.box.begin(1)) * shard.place.strides[1];
        visit(shard.tensor_index, r * kColumns + c, shard.place.region_index,
              shard.place.offset_bytes + static_cast<uint64_t>(place) * ElementBytes(shard.format));
      }
    }
  }
}

class PlainModel final : public ClusterModel {
 public:
  explicit PlainModel(const PlainModelOptions& options) : options_(options) {}

  Manifest Trainer(uint32_t t) const override { return TrainerManifest(t, options_); }
  Manifest Worker(uint32_t w) const override { return WorkerManifest(w, options_); }

  void Fill(uint64_t version, const Manifest& trainer, std::byte* memory) const override {
    const uint32_t size = SizeBytes(options_.dtype);
    ForEachElement(trainer, [&](uint32_t tensor, int64_t number, uint32_t, uint64_t offset) {
      // A BF16 value, or the float that has its bits above: it rounds to that, exactly.
      const uint32_t value = ValueOf(tensor, number, version);
      const uint32_t bits = size == 4 ? value << 16 : value;
      std::memcpy(memory + offset, &bits, size);
    });
  }

  void Expect(uint64_t version, const Manifest& worker,
              std::vector<std::vector<std::byte>>& regions) const override {
    ForEachElement(worker, [&](uint32_t tensor, int64_t number, uint32_t region, uint64_t offset) {
      const uint16_t value = ValueOf(tensor, number, version);
      std::memcpy(&regions[region][offset], &value, 2);
    });
  }

 private:
  const PlainModelOptions options_;
};

}  // namespace

std::shared_ptr<const ClusterModel> MakePlainModel(const PlainModelOptions& options) {
  return std::make_shared<PlainModel>(options);
}

}  // namespace waybill
