// SPDX-License-Identifier: Apache-2.0

#include "core/engine/replica_sample.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/plan/chunks.h"
#include "core/plan/geometry.h"
#include "core/plan/route_table.h"
#include "core/stage/stage_piece.h"

namespace waybill {
namespace {

// The most units of one pass.
constexpr size_t kUnitsPerPass = 256;

static_assert(kLeastReplicaUnitBytes % kCutBytes == 0, "a unit is whole leaves");

// The elements of a shard in row-major order.
class RowMajor {
 public:
  explicit RowMajor(const ShardView& shard) {
    std::array<int64_t, kMaxDimensions> strides;
    int64_t stride = 1;
    const auto count = static_cast<size_t>(shard.box.dimensions());
    for (size_t d = count; d-- > 0;) {
      strides[d] = stride;
      stride *= shard.box.extent(static_cast<int>(d));
    }
    ShardView packed = shard;
    packed.place = {.strides = absl::MakeConstSpan(strides.data(), count)};
    const uint32_t element_bytes = ElementBytes(shard.format);
    shape_ = {.transform = Transform::kNone,
              .source_element_bytes = element_bytes,
              .destination_element_bytes = element_bytes,
              .axes = MakeAxes(shard, packed, shard.box, /*quantises=*/false, axes_)};
  }
  RowMajor(const RowMajor&) = delete;
  RowMajor& operator=(const RowMajor&) = delete;

  const RouteShape& shape() const { return shape_; }

 private:
  std::array<Axis, kMaxAxes> axes_;
  RouteShape shape_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicaSample>> ReplicaSample::Create(
    const Manifest* manifest, absl::Span<const MemorySpan> regions) {
  std::unique_ptr<ReplicaSample> sample(new ReplicaSample(manifest));
  WAYBILL_ASSIGN_OR_RETURN(auto device, OpenDeviceOf(regions));
  if (device == nullptr) return sample;
  WAYBILL_ASSIGN_OR_RETURN(
      sample->device_, DeviceStager::Create(std::move(device), {.what = "compare replicas on a GPU",
                                                                .chunk_bytes = kCutBytes,
                                                                .most_pieces = kUnitsPerPass}));
  return sample;
}

absl::StatusOr<std::vector<ReplicaSample::Digest>> ReplicaSample::Take(
    uint64_t version, absl::Span<const MemorySpan> regions) {
  const std::vector<ReplicaUnit> turn = units_.TurnOf(version);
  std::vector<Digest> digests;
  if (device_ != nullptr) device_->Begin();
  for (size_t first = 0; first < turn.size(); first += kUnitsPerPass) {
    DeviceStager::Pass pass(device_.get());
    const size_t end = std::min(turn.size(), first + kUnitsPerPass);
    for (size_t u = first; u < end; ++u) {
      const ReplicaUnit& unit = turn[u];
      const ShardView shard = manifest_.shard(unit.shard);
      const RowMajor elements(shard);
      if (elements.shape().transposed()) continue;
      const MemorySpan& region = regions[shard.place.region_index];
      const std::byte* const source = region.data + shard.place.offset_bytes;
      const auto number = static_cast<uint32_t>(digests.size());
      digests.push_back({.unit = unit.key});
      if (region.kind == MemoryKind::kDevice) {
        pass.DigestSource(number, elements.shape(), source, unit.begin_bytes, unit.end_bytes);
      } else {
        digests[number].digest =
            DigestSource(elements.shape(), source, unit.begin_bytes, unit.end_bytes);
      }
    }
    pass.Finish([&](uint32_t number, uint64_t sum) { digests[number].digest = sum; });
  }
  if (device_ != nullptr) WAYBILL_RETURN_IF_ERROR(device_->status());
  return digests;
}

}  // namespace waybill
