// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/manifest_check.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/narrow.h"
#include "core/base/status.h"
#include "core/tensor/region_cover.h"

namespace waybill {
namespace {

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// The bytes of an array of `extents` elements, if they can be counted in 63 bits.
absl::Status CheckSize(absl::string_view what, absl::Span<const int64_t> extents,
                       uint64_t element_bytes) {
  uint64_t size = element_bytes;
  for (const int64_t extent : extents) {
    if (extent < 0) return Invalid(absl::StrCat(what, ": extent ", extent, " is negative"));
    const auto product = CheckedMultiply(size, static_cast<uint64_t>(extent));
    if (!product || *product > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Invalid(absl::StrCat(what, ": shape ", ShapeToString(extents), " of ", element_bytes,
                                  "-byte elements does not fit into 2^63 bytes"));
    }
    size = *product;
  }
  return absl::OkStatus();
}

absl::Status CheckPlace(const Manifest& manifest, absl::string_view what,
                        absl::Span<const int64_t> extents, uint32_t element_bytes,
                        const Place& place) {
  if (place.region_index >= manifest.region_count()) {
    return Invalid(
        absl::StrCat(what, ": region ", place.region_index, " of ", manifest.region_count()));
  }
  if (place.strides.size() != extents.size()) {
    return Invalid(absl::StrCat(what, ": ", place.strides.size(), " strides for ", extents.size(),
                                " dimensions"));
  }
  uint64_t end = element_bytes;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] == 0) return absl::OkStatus();
    if (place.strides[d] < 0) {
      return Invalid(absl::StrCat(what, ": stride ", place.strides[d], " is negative"));
    }
    const auto elements = CheckedMultiply(static_cast<uint64_t>(place.strides[d]),
                                          static_cast<uint64_t>(extents[d] - 1));
    const auto bytes = elements ? CheckedMultiply(*elements, element_bytes) : std::nullopt;
    const auto sum = bytes ? CheckedAdd(end, *bytes) : std::nullopt;
    if (!sum) return Invalid(absl::StrCat(what, ": its place does not fit into 2^64 bytes"));
    end = *sum;
  }
  const auto last = CheckedAdd(end, place.offset_bytes);
  if (!last || *last > manifest.region_bytes(place.region_index)) {
    return Invalid(absl::StrCat(what, ": bytes [", place.offset_bytes, ", ",
                                last ? absl::StrCat(*last) : "2^64", ") are not in region \"",
                                manifest.region_name(place.region_index), "\" of ",
                                manifest.region_bytes(place.region_index), " bytes"));
  }
  return absl::OkStatus();
}

std::string ShardName(const Manifest& manifest, uint32_t tensor_index, const Box& box) {
  return absl::StrCat("tensor \"", manifest.tensor_name(tensor_index), "\" ", ToString(box));
}

// The space of the shard's box: the tensor, or the grid of its scales.
absl::StatusOr<std::vector<int64_t>> ShapeOf(const Manifest& manifest, const ShardView& shard,
                                             const std::string& what) {
  const auto shape = manifest.tensor_shape(shard.tensor_index);
  if (shard.format.content == Content::kPlain) return std::vector(shape.begin(), shape.end());
  if (shape.size() < 2) {
    return Invalid(absl::StrCat(what, ": shape ", ShapeToString(shape),
                                " is no matrix, which quantisation is for"));
  }
  const Quantisation& q = shard.format.quantisation;
  WAYBILL_RETURN_IF_ERROR(While(what, CheckQuantisation(q)));
  if (shard.format.content == Content::kQuantised) return std::vector(shape.begin(), shape.end());
  if (shard.place.offset_bytes % ElementBytes(shard.format) != 0) {
    return Invalid(absl::StrCat(what, ": scales of ", ElementBytes(shard.format),
                                " bytes begin at byte ", shard.place.offset_bytes,
                                ", which is not a multiple of that"));
  }
  return GridShape(shape, ScaleExtents(q, shape));
}

// Unlike Box::Contains(), holds empty boxes to their bounds too.
bool LiesIn(const Box& box, absl::Span<const int64_t> shape) {
  if (static_cast<size_t>(box.dimensions()) != shape.size()) return false;
  for (int d = 0; d < box.dimensions(); ++d) {
    if (box.begin(d) < 0 || box.end(d) < box.begin(d) ||
        box.end(d) > shape[static_cast<size_t>(d)]) {
      return false;
    }
  }
  return true;
}

absl::Status CheckShard(const Manifest& manifest, uint32_t i) {
  const ShardView shard = manifest.shard(i);
  if (shard.tensor_index >= manifest.tensor_count()) {
    return Invalid(absl::StrCat("shard ", i, ": tensor ", shard.tensor_index, " of ",
                                manifest.tensor_count()));
  }
  const std::string what = ShardName(manifest, shard.tensor_index, shard.box);
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, ShapeOf(manifest, shard, what));
  if (!LiesIn(shard.box, shape)) {
    return Invalid(
        absl::StrCat(what, ": not in its ",
                     shard.format.content == Content::kScales ? "grid's shape " : "shape ",
                     ShapeToString(shape)));
  }
  std::array<int64_t, kMaxDimensions> extents;
  for (int d = 0; d < shard.box.dimensions(); ++d) {
    extents[static_cast<size_t>(d)] = shard.box.extent(d);
  }
  return CheckPlace(manifest, what, {extents.data(), shape.size()}, ElementBytes(shard.format),
                    shard.place);
}

// `owner` is a shard, or shard_count + a padding.
std::string OwnerName(const Manifest& manifest, uint32_t owner) {
  if (owner >= manifest.shard_count()) {
    return absl::StrCat("padding ", owner - manifest.shard_count());
  }
  const ShardView shard = manifest.shard(owner);
  return ShardName(manifest, shard.tensor_index, shard.box);
}

std::optional<ByteClaim> ClaimOf(const Manifest& manifest, uint32_t owner) {
  if (owner >= manifest.shard_count()) {
    const PaddingView padding = manifest.padding(owner - manifest.shard_count());
    return MakeByteClaim(owner, padding.place.offset_bytes, padding.extents, padding.place.strides,
                         padding.element_bytes);
  }
  const ShardView shard = manifest.shard(owner);
  std::array<int64_t, kMaxDimensions> extents;
  for (int d = 0; d < shard.box.dimensions(); ++d) {
    extents[static_cast<size_t>(d)] = shard.box.extent(d);
  }
  return MakeByteClaim(owner, shard.place.offset_bytes,
                       {extents.data(), static_cast<size_t>(shard.box.dimensions())},
                       shard.place.strides, ElementBytes(shard.format));
}

absl::Status FaultStatus(const Manifest& manifest, uint32_t region, const CoverFault& fault) {
  const std::string bytes = absl::StrCat("region \"", manifest.region_name(region), "\": bytes [",
                                         fault.begin, ", ", fault.end, ") ");
  switch (fault.kind) {
    case CoverFault::Kind::kOverlap:
      return Invalid(absl::StrCat(bytes, "belong to both ", OwnerName(manifest, fault.first),
                                  " and ", OwnerName(manifest, *fault.second)));
    case CoverFault::Kind::kHole:
      return Invalid(absl::StrCat(
          bytes,
          fault.second ? absl::StrCat("before ", OwnerName(manifest, *fault.second), " ") : "",
          "are neither a shard nor declared padding"));
    case CoverFault::Kind::kFragmented:
      break;
  }
  return Invalid(absl::StrCat(bytes, "from ", OwnerName(manifest, fault.first),
                              " on: shards and padding are interleaved in too many pieces"));
}

absl::Status CheckCover(const Manifest& manifest) {
  const uint32_t owners = manifest.shard_count() + manifest.padding_count();
  std::vector<std::vector<uint32_t>> owners_of(manifest.region_count());
  for (uint32_t i = 0; i < owners; ++i) {
    const uint32_t region = i < manifest.shard_count()
                                ? manifest.shard(i).place.region_index
                                : manifest.padding(i - manifest.shard_count()).place.region_index;
    owners_of[region].push_back(i);
  }
  CoverBudget budget;
  budget.pieces_left += uint64_t{16} * owners;
  for (uint32_t region = 0; region < manifest.region_count(); ++region) {
    std::vector<ByteClaim> claims;
    for (const uint32_t owner : owners_of[region]) {
      if (const auto claim = ClaimOf(manifest, owner)) claims.push_back(*claim);
    }
    const auto fault = CheckRegionCover(std::move(claims), manifest.region_bytes(region), budget);
    if (fault) return FaultStatus(manifest, region, *fault);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckManifest(const Manifest& manifest, Holes holes) {
  absl::flat_hash_set<absl::string_view> names;
  for (uint32_t i = 0; i < manifest.tensor_count(); ++i) {
    const absl::string_view name = manifest.tensor_name(i);
    if (name.empty()) return Invalid(absl::StrCat("tensor ", i, ": its name is empty"));
    if (!names.insert(name).second) {
      return Invalid(absl::StrCat("tensor \"", name, "\" is declared twice"));
    }
    if (manifest.tensor_shape(i).size() > kMaxDimensions) {
      return Invalid(absl::StrCat("tensor \"", name, "\": ", manifest.tensor_shape(i).size(),
                                  " dimensions, at most ", kMaxDimensions));
    }
    WAYBILL_RETURN_IF_ERROR(CheckSize(absl::StrCat("tensor \"", name, "\""),
                                      manifest.tensor_shape(i),
                                      SizeBytes(manifest.tensor_dtype(i))));
  }
  for (uint32_t i = 0; i < manifest.alias_count(); ++i) {
    const absl::string_view name = manifest.alias_name(i);
    if (manifest.alias_tensor(i) >= manifest.tensor_count()) {
      return Invalid(absl::StrCat("alias \"", name, "\": tensor ", manifest.alias_tensor(i), " of ",
                                  manifest.tensor_count()));
    }
    if (name.empty() || !names.insert(name).second) {
      return Invalid(absl::StrCat("alias \"", name, "\": empty, or the name of something else"));
    }
  }
  for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
    WAYBILL_RETURN_IF_ERROR(CheckShard(manifest, i));
  }
  for (uint32_t i = 0; i < manifest.padding_count(); ++i) {
    const PaddingView padding = manifest.padding(i);
    const std::string what = absl::StrCat("padding ", i);
    if (padding.element_bytes == 0 || padding.extents.size() > kMaxDimensions) {
      return Invalid(absl::StrCat(what, ": ", padding.extents.size(), " dimensions of ",
                                  padding.element_bytes, "-byte elements; at most ", kMaxDimensions,
                                  ", of at least 1 byte"));
    }
    WAYBILL_RETURN_IF_ERROR(CheckSize(what, padding.extents, padding.element_bytes));
    WAYBILL_RETURN_IF_ERROR(
        CheckPlace(manifest, what, padding.extents, padding.element_bytes, padding.place));
  }
  return holes == Holes::kRefused ? CheckCover(manifest) : absl::OkStatus();
}

absl::Status CheckOrder(const Manifest& manifest) {
  if (manifest.shards_in_engine_order().empty()) return absl::OkStatus();
  const ShardView shard = manifest.shard(manifest.shards_in_engine_order().front());
  const bool scales = shard.format.content == Content::kScales;
  return Invalid(absl::StrCat(
      scales ? "scales of " : "", ShardName(manifest, shard.tensor_index, shard.box),
      scales ? " lie" : " lies", " in the engine's own order \"", shard.place.engine_order,
      "\", which is not known: declare ", scales ? "them" : "it", " as the engine loads ",
      scales ? "them" : "it",
      ", row by row, and receive in shadow-copy mode, whose commit runs the engine's step after "
      "loading; or have the engine keep the plain layout"));
}

}  // namespace waybill
