// SPDX-License-Identifier: Apache-2.0

// Pieces of random shapes against the definition: element by element, by the axes.

#include "core/stage/stage_piece.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "core/plan/chunks.h"
#include "core/stage/cast_of.h"
#include "kernels/digest.h"
#include "kernels/scalar.h"

namespace waybill {
namespace {

using Bytes = std::vector<std::byte>;

struct RandomRoute {
  std::vector<Axis> axes;
  RouteShape shape;
  Bytes source;
  uint64_t destination_bytes = 0;
};

// A dense source in a random axis order, and a destination whose rows lie apart.
RandomRoute MakeRoute(std::mt19937& random, Transform transform, uint32_t element) {
  RandomRoute route;
  const size_t count = 1 + random() % 3;
  const auto cast = CastOf(transform);
  const uint32_t from =
      cast ? static_cast<uint32_t>(kernels::SizeBytes(kernels::SourceOf(*cast))) : element;
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  route.axes.resize(count);
  int64_t elements = 1;
  for (Axis& axis : route.axes) {
    axis.extent = 1 + static_cast<int64_t>(random() % (count == 1 ? 20000 : 90));
    elements *= axis.extent;
  }
  int64_t stride = from;
  for (size_t i = count; i-- > 0;) {
    route.axes[order[i]].source_stride = stride;
    stride *= route.axes[order[i]].extent;
  }
  int64_t place = element;
  for (size_t a = count; a-- > 0;) {
    route.axes[a].destination_stride = place;
    place = place * route.axes[a].extent + element * static_cast<int64_t>(random() % 3);
  }
  route.destination_bytes = static_cast<uint64_t>(place);
  route.source.resize(static_cast<size_t>(elements) * from);
  for (std::byte& b : route.source) b = static_cast<std::byte>(random() & 0x7E);
  route.shape = {.transform = transform,
                 .source_element_bytes = from,
                 .destination_element_bytes = element,
                 .axes = route.axes};
  return route;
}

// All bytes of the route, in the order of its walk, and the destination with a mark in its gaps.
void ByDefinition(const RandomRoute& route, Bytes& packed, Bytes& placed) {
  const RouteShape& shape = route.shape;
  placed.assign(route.destination_bytes, std::byte{0xEE});
  for (int64_t e = 0; e < shape.element_count(); ++e) {
    int64_t rest = e, from = 0, to = 0;
    for (size_t a = shape.axes.size(); a-- > 0;) {
      from += rest % shape.axes[a].extent * shape.axes[a].source_stride;
      to += rest % shape.axes[a].extent * shape.axes[a].destination_stride;
      rest /= shape.axes[a].extent;
    }
    std::byte element[8];
    std::memcpy(element, &route.source[static_cast<size_t>(from)], shape.source_element_bytes);
    if (const auto cast = CastOf(shape.transform)) {
      std::byte converted[4];
      kernels::scalar::CastElements(*cast, converted, element, 1);
      std::memcpy(element, converted, 4);
    }
    packed.insert(packed.end(), element, element + shape.destination_element_bytes);
    std::memcpy(&placed[static_cast<size_t>(to)], element, shape.destination_element_bytes);
  }
}

TEST(StagePiece, EveryCutOfEveryShapeGivesTheDefinitionsBytesAndDigest) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    constexpr std::array kTransforms = {
        std::pair{Transform::kNone, 1u},      std::pair{Transform::kNone, 2u},
        std::pair{Transform::kNone, 4u},      std::pair{Transform::kNone, 8u},
        std::pair{Transform::kF32ToBf16, 2u}, std::pair{Transform::kF32ToF16, 2u},
        std::pair{Transform::kBf16ToF32, 4u}, std::pair{Transform::kF16ToF32, 4u},
        std::pair{Transform::kBf16ToF16, 2u}};
    const auto [transform, element] = kTransforms[random() % kTransforms.size()];
    const RandomRoute route = MakeRoute(random, transform, element);
    Bytes packed, placed;
    ByDefinition(route, packed, placed);
    const uint64_t digest = kernels::Digest(packed.data(), packed.size());

    Bytes slot(packed.size()), memory(route.destination_bytes, std::byte{0xEE});
    uint64_t packed_sum = 0, placed_sum = 0, found_sum = 0;
    for (uint64_t at = 0; at < packed.size();) {
      const uint64_t end = std::min<uint64_t>(packed.size(), at + (1 + random() % 5) * kCutBytes);
      packed_sum += StagePacked(route.shape, route.source.data(), at, end, &slot[at], Digests::kOn);
      placed_sum +=
          StageInPlace(route.shape, route.source.data(), at, end, memory.data(), Digests::kOn);
      found_sum += DigestInPlace(route.shape, placed.data(), at, end);
      at = end;
    }
    ASSERT_EQ(slot, packed);
    ASSERT_EQ(memory, placed);
    EXPECT_EQ(kernels::FinishDigest(packed_sum, packed.size()), digest);
    EXPECT_EQ(kernels::FinishDigest(placed_sum, packed.size()), digest);
    EXPECT_EQ(kernels::FinishDigest(found_sum, packed.size()), digest);
  }
}

TEST(StagePiece, WithoutDigestsTheBytesAreTheSame) {
  std::mt19937 random(12);
  const RandomRoute route = MakeRoute(random, Transform::kNone, 2);
  Bytes packed, placed;
  ByDefinition(route, packed, placed);
  Bytes slot(packed.size());
  EXPECT_EQ(
      StagePacked(route.shape, route.source.data(), 0, packed.size(), slot.data(), Digests::kOff),
      0u);
  EXPECT_EQ(slot, packed);
}

}  // namespace
}  // namespace waybill
