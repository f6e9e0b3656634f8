// SPDX-License-Identifier: Apache-2.0

#include "testing/cluster/quantised_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "core/tensor/box_index.h"

namespace waybill {
namespace {

// E4M3 without infinities: 0x7f and 0xff are NaN.
float ValueOfE4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Returns the nearest code, the even one if two are equally near, and at most the largest.
uint8_t NearestE4m3(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  if (std::isnan(x)) return sign | 0x7f;
  const double magnitude = std::min(std::fabs(static_cast<double>(x)), 448.0);
  uint8_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (uint8_t code = 0; code < 0x7f; ++code) {
    const double distance = std::fabs(static_cast<double>(ValueOfE4m3(code)) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = code;
    }
  }
  return sign | best;
}

float FloatOfBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

class QuantisedModel final : public ClusterModel {
 public:
  explicit QuantisedModel(const QuantisedModelOptions& options) : options_(options) {}

  Manifest Trainer(uint32_t t) const override {
    Manifest m;
    const Format format{options_.dtype};
    uint64_t bytes = 0;
    for (const Box& box : options_.trainers[t]) {
      bytes += static_cast<uint64_t>(box.element_count()) * ElementBytes(format);
    }
    m.AddRegion("memory", std::max<uint64_t>(bytes, 8));
    m.AddTensor("w", options_.shape, options_.dtype);
    uint64_t offset = 0;
    for (const Box& box : options_.trainers[t]) {
      m.AddShard(0, format, box, {0, offset, Strides(box)});
      offset += static_cast<uint64_t>(box.element_count()) * ElementBytes(format);
    }
    return m;
  }

  // Elements in one region, scales in the next.
  Manifest Worker(uint32_t w) const override {
    const Quantisation& q = options_.quantisation;
    Box box = Box::Whole(options_.shape);
    const int d = box.dimensions() - (options_.by_columns ? 1 : 2);
    const int64_t each = (box.end(d) + options_.workers - 1) / options_.workers;
    const int64_t begin = each * (w % options_.workers);
    box.Set(d, std::min(box.end(d), begin), std::min(box.end(d), begin + each));
    const Box cells = CellsMeeting(box, ScaleExtents(q, options_.shape));
    Manifest m;
    m.AddTensor("w", options_.shape, Dtype::kBf16);
    m.AddRegion("elements", static_cast<uint64_t>(box.element_count()));
    m.AddRegion("scales", static_cast<uint64_t>(cells.element_count()) * SizeBytes(q.scale_dtype));
    m.AddShard(0, Format::Quantised(q), box, {0, 0, Strides(box)});
    m.AddShard(0, Format::Scales(q), cells, {1, 0, Strides(cells)});
    return m;
  }

  void Fill(uint64_t version, const Manifest& trainer, std::byte* memory) const override {
    for (uint32_t s = 0; s < trainer.shard_count(); ++s) {
      const ShardView shard = trainer.shard(s);
      std::byte* at = memory + shard.place.offset_bytes;
      ForEachIndex(shard.box, [&](absl::Span<const int64_t> index) {
        const uint16_t bf16 = ElementOf(index, version);
        if (options_.dtype == Dtype::kBf16) {
          std::memcpy(at, &bf16, 2);
          at += 2;
        } else {  // A number beside it that rounds to it.
          const uint32_t bits = (uint32_t{bf16} << 16) + (bf16 % 3);
          std::memcpy(at, &bits, 4);
          at += 4;
        }
      });
    }
  }

  void Expect(uint64_t version, const Manifest& worker,
              std::vector<std::vector<std::byte>>& regions) const override {
    const Extents2 block = BlockExtents(options_.quantisation, options_.shape);
    const Box whole = Box::Whole(GridShape(options_.shape, block));
    ForEachIndex(whole, [&](absl::Span<const int64_t> at) {
      const Box one = OneAt(at);
      ExpectBlock(version, one, ElementsOf(one, block, options_.shape), worker, regions);
    });
  }

 private:
  static std::vector<int64_t> Strides(const Box& box) {
    std::vector<int64_t> extents, strides(static_cast<size_t>(box.dimensions()));
    for (int d = 0; d < box.dimensions(); ++d) extents.push_back(box.extent(d));
    RowMajorStrides(extents, absl::MakeSpan(strides));
    return strides;
  }

  uint16_t ElementOf(absl::Span<const int64_t> index, uint64_t version) const {
    uint64_t number = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      number = number * static_cast<uint64_t>(options_.shape[d]) + static_cast<uint64_t>(index[d]);
    }
    if (options_.nonfinite_from != 0 && version >= options_.nonfinite_from) {
      if (number == 5) return 0x7FC1;
      if (number == 77) return 0xFF80;
    }
    const uint64_t mixed = (version * 0x9E3779B97F4A7C15u) ^ (number * 0xD6E8FEB86659FD93u);
    // Elements of all sizes, so that maxima differ, and also blocks of zeros.
    if (number / 200 % 7 == version % 7) return static_cast<uint16_t>(mixed >> 48 & 0x8000);
    const auto exponent = static_cast<uint16_t>(100 + (mixed >> 20) % 40);
    return static_cast<uint16_t>((mixed >> 48 & 0x807F) | exponent << 7);
  }

  float ScaleOf(float maximum) const {
    const Quantisation& q = options_.quantisation;
    maximum = maximum < q.epsilon ? q.epsilon : maximum;
    if (q.rounding == ScaleRounding::kNone) return maximum / 448.0f;
    if (std::isnan(maximum)) return maximum;
    // 2^(floor(log2(maximum)) - 8), within what E8M0 has.
    const int exponent = maximum == 0 ? -127 : std::ilogb(maximum) - 8;
    return std::ldexp(1.0f, std::clamp(exponent, -127, 127));
  }

  void ExpectBlock(uint64_t version, const Box& block, const Box& elements, const Manifest& worker,
                   std::vector<std::vector<std::byte>>& regions) const {
    float maximum = 0;
    bool nan = false;
    ForEachIndex(elements, [&](absl::Span<const int64_t> index) {
      const float x = std::fabs(FloatOfBf16(ElementOf(index, version)));
      nan = nan || std::isnan(x);
      maximum = std::max(maximum, x);
    });
    if (nan) maximum = std::numeric_limits<float>::quiet_NaN();
    const float scale = ScaleOf(maximum);
    const float reciprocal = 1.0f / scale;
    const ShardView weights = worker.shard(0), scales = worker.shard(1);
    ForEachIndex(Intersect(elements, weights.box), [&](absl::Span<const int64_t> index) {
      const float x = FloatOfBf16(ElementOf(index, version)) * reciprocal;
      regions[0][Offset(weights, index)] =
          std::byte{Code(x, FloatOfBf16(ElementOf(index, version)))};
    });
    const Quantisation& q = options_.quantisation;
    const Box cells = CellsOfBlocks(block, BlockExtents(q, options_.shape),
                                    ScaleExtents(q, options_.shape), options_.shape);
    ForEachIndex(Intersect(cells, scales.box), [&](absl::Span<const int64_t> index) {
      std::byte* to = &regions[1][Offset(scales, index) * SizeBytes(q.scale_dtype)];
      if (q.scale_dtype == Dtype::kE8m0) {
        *to = std::byte{static_cast<uint8_t>(std::isnan(scale) ? 0xff : std::ilogb(scale) + 127)};
      } else {
        const uint32_t bits = std::isnan(scale) ? 0x7FC00000 : std::bit_cast<uint32_t>(scale);
        std::memcpy(to, &bits, 4);
      }
    });
  }

  // NaN keeps the element's sign.
  static uint8_t Code(float scaled, float element) {
    if (!std::isnan(scaled)) return NearestE4m3(scaled);
    return static_cast<uint8_t>((std::signbit(element) ? 0x80 : 0) | 0x7f);
  }

  static uint64_t Offset(const ShardView& shard, absl::Span<const int64_t> index) {
    int64_t offset = 0;
    for (int d = 0; d < shard.box.dimensions(); ++d) {
      const auto i = static_cast<size_t>(d);
      offset += (index[i] - shard.box.begin(d)) * shard.place.strides[i];
    }
    return static_cast<uint64_t>(offset);
  }

  const QuantisedModelOptions options_;
};

}  // namespace

std::shared_ptr<const ClusterModel> MakeQuantisedModel(const QuantisedModelOptions& options) {
  return std::make_shared<QuantisedModel>(options);
}

}  // namespace waybill
