// SPDX-License-Identifier: Apache-2.0

#include "core/layout/load_shards.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/box.h"
#include "core/tensor/manifest_check.h"
#include "kernels/cast.h"
#include "kernels/copy.h"
#include "kernels/rows.h"
#include "kernels/transpose.h"

namespace waybill {
namespace {

// The two innermost axes of a box; those that it lacks have one element. Strides are in bytes.
struct Block {
  std::array<size_t, 2> extents{1, 1};
  std::array<int64_t, 2> source{0, 0};
  std::array<int64_t, 2> destination{0, 0};
};

void Copy(std::byte* destination, const std::byte* source, const Block& b, size_t element_bytes) {
  const auto one = static_cast<int64_t>(element_bytes);
  const bool source_rows = b.source[1] == one || b.extents[1] == 1;
  if (source_rows && (b.destination[1] == one || b.extents[1] == 1)) {
    kernels::CopyRows(destination, b.destination[0], source, b.source[0], b.extents[0],
                      b.extents[1] * element_bytes, kernels::Stores::kCached, nullptr);
    return;
  }
  if (source_rows && b.destination[0] == one) {
    kernels::Transpose(destination, b.destination[1], source, b.source[0], b.extents[1],
                       b.extents[0], element_bytes, nullptr);
    return;
  }
  for (size_t i = 0; i < b.extents[0]; ++i) {
    for (size_t j = 0; j < b.extents[1]; ++j) {
      const auto row = static_cast<int64_t>(i);
      const auto column = static_cast<int64_t>(j);
      std::memcpy(destination + row * b.destination[0] + column * b.destination[1],
                  source + row * b.source[0] + column * b.source[1], element_bytes);
    }
  }
}

// The format has passed CheckConversion().
kernels::Cast CastBetween(Dtype source, Dtype destination) {
  if (source == Dtype::kBf16) {
    return destination == Dtype::kF16 ? kernels::Cast::kBf16ToF16 : kernels::Cast::kBf16ToF32;
  }
  if (source == Dtype::kF16) return kernels::Cast::kF16ToF32;
  return destination == Dtype::kBf16 ? kernels::Cast::kF32ToBf16 : kernels::Cast::kF32ToF16;
}

// Rows, each dense, become dense rows of another type. Checkpoints promise no alignment; the cast
// wants it.
void ConvertRows(kernels::Cast cast, std::byte* destination, const std::byte* source,
                 const Block& b) {
  alignas(64) std::array<std::byte, 4096> aligned;
  const size_t from_bytes = SizeBytes(SourceOf(cast));
  const size_t at_a_time = aligned.size() / from_bytes;
  for (size_t i = 0; i < b.extents[0]; ++i) {
    const std::byte* row = source + static_cast<int64_t>(i) * b.source[0];
    for (size_t at = 0; at < b.extents[1]; at += at_a_time) {
      const size_t count = std::min(at_a_time, b.extents[1] - at);
      std::memcpy(aligned.data(), row + at * from_bytes, count * from_bytes);
      kernels::CastElements(cast, destination, aligned.data(), count, kernels::Stores::kCached,
                            nullptr);
      destination += count * SizeBytes(DestinationOf(cast));
    }
  }
}

class Loader {
 public:
  Loader(const ShardView& shard, const CheckpointTensor& tensor)
      : box_(shard.box),
        element_bytes_(ElementBytes(shard.format)),
        converts_(!AreSameBytes(tensor.dtype, shard.format.dtype)),
        cast_(CastBetween(tensor.dtype, shard.format.dtype)) {
    const size_t dimensions = tensor.shape.size();
    std::array<int64_t, kMaxDimensions> strides;
    RowMajorStrides(tensor.shape, absl::MakeSpan(strides).first(dimensions));
    for (size_t d = 0; d < dimensions; ++d) {
      source_[d] = strides[d] * SizeBytes(tensor.dtype);
      destination_[d] = shard.place.strides[d] * element_bytes_;
      origin_bytes_ += box_.begin(static_cast<int>(d)) * source_[d];
    }
    const size_t inner = std::min<size_t>(dimensions, 2);
    outer_ = static_cast<int>(dimensions - inner);
    for (size_t k = 0; k < inner; ++k) {
      const size_t d = dimensions - inner + k;
      const size_t to = 2 - inner + k;
      block_.extents[to] = static_cast<size_t>(box_.extent(static_cast<int>(d)));
      block_.source[to] = source_[d];
      block_.destination[to] = destination_[d];
    }
    if (converts_) converted_.resize(block_.extents[0] * block_.extents[1] * element_bytes_);
  }

  void Run(std::byte* destination, const std::byte* source) {
    Walk(0, destination, source + origin_bytes_);
  }

 private:
  void Walk(int d, std::byte* destination, const std::byte* source) {
    if (d < outer_) {
      for (int64_t i = 0; i < box_.extent(d); ++i) {
        Walk(d + 1, destination + i * destination_[static_cast<size_t>(d)],
             source + i * source_[static_cast<size_t>(d)]);
      }
      return;
    }
    if (!converts_) return Copy(destination, source, block_, element_bytes_);
    ConvertRows(cast_, converted_.data(), source, block_);
    Block dense = block_;
    dense.source = {static_cast<int64_t>(block_.extents[1] * element_bytes_), element_bytes_};
    Copy(destination, converted_.data(), dense, element_bytes_);
  }

  const Box box_;
  const uint32_t element_bytes_;
  const bool converts_;
  const kernels::Cast cast_;  // If it converts.
  int outer_ = 0;
  int64_t origin_bytes_ = 0;
  std::array<int64_t, kMaxDimensions> source_{};
  std::array<int64_t, kMaxDimensions> destination_{};
  Block block_;
  std::vector<std::byte> converted_;
};

}  // namespace

absl::Status LoadShards(const Checkpoint& checkpoint, const Manifest& manifest,
                        absl::Span<std::byte> weights) {
  if (manifest.region_count() == 0 || manifest.region_bytes(0) != weights.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("load shards: memory of ", weights.size(), " bytes for a region of ",
                     manifest.region_count() == 0 ? 0 : manifest.region_bytes(0)));
  }
  WAYBILL_RETURN_IF_ERROR(While("load shards", CheckOrder(manifest)));
  for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
    const ShardView shard = manifest.shard(i);
    if (shard.place.region_index != 0 || shard.box.empty()) continue;
    const absl::string_view name = manifest.tensor_name(shard.tensor_index);
    const CheckpointTensor* tensor = checkpoint.Find(name);
    if (tensor == nullptr ||
        absl::MakeConstSpan(tensor->shape) != manifest.tensor_shape(shard.tensor_index)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "load shards: tensor \"", name, "\" ",
          ShapeToString(manifest.tensor_shape(shard.tensor_index)), " is not in the checkpoint",
          tensor == nullptr ? "" : absl::StrCat(", where it is ", ShapeToString(tensor->shape))));
    }
    if (absl::Status s = CheckConversion(Format{tensor->dtype}, shard.format); !s.ok()) {
      return While(absl::StrCat("load shards: tensor \"", name, "\""), std::move(s));
    }
    Loader(shard, *tensor).Run(weights.data() + shard.place.offset_bytes, tensor->data.data());
  }
  return absl::OkStatus();
}

}  // namespace waybill
