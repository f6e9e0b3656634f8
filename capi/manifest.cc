// SPDX-License-Identifier: Apache-2.0

#include "capi/manifest.h"

#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "capi/call.h"
#include "capi/quantisation.h"
#include "capi/struct_size.h"
#include "core/tensor/box.h"
#include "core/tensor/manifest_check.h"
#include "core/tensor/manifest_codec.h"

namespace waybill::capi {
namespace {

using Extents = std::array<int64_t, kMaxDimensions>;

absl::Status CheckDimensions(uint32_t dimensions) {
  if (dimensions <= kMaxDimensions) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(dimensions, " dimensions; at most ", kMaxDimensions, " are allowed"));
}

absl::Status CheckIndex(absl::string_view what, uint32_t index, uint32_t count) {
  if (index < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", index, " is not there: ", count, " were added"));
}

absl::StatusOr<absl::Span<const int64_t>> Array(const int64_t* given, uint32_t dimensions,
                                                absl::string_view name) {
  if (given != nullptr || dimensions == 0) return absl::MakeConstSpan(given, dimensions);
  return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

absl::StatusOr<Format> ReadFormat(const waybill_shard_t& shard, Dtype of_tensor) {
  if (shard.content > WAYBILL_CONTENT_SCALES) {
    return absl::InvalidArgumentError(absl::StrCat("content ", shard.content, " is none"));
  }
  Format format{.dtype = of_tensor};
  if (shard.content == WAYBILL_CONTENT_PLAIN) {
    if (shard.quantisation != nullptr) {
      return absl::InvalidArgumentError("plain content has no quantisation: set it to NULL");
    }
  } else {
    WAYBILL_ASSIGN_OR_RETURN(const Quantisation q, ReadQuantisation(shard.quantisation));
    format = shard.content == WAYBILL_CONTENT_QUANTISED ? Format::Quantised(q) : Format::Scales(q);
  }
  if (shard.dtype == 0) return format;
  WAYBILL_ASSIGN_OR_RETURN(const Dtype dtype, DtypeFromNumber(shard.dtype));
  if (format.content == Content::kPlain) {
    format.dtype = dtype;
  } else if (!waybill::AreSameBytes(dtype, format.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", Name(dtype), " is not that of ", ToString(format.quantisation)));
  }
  return format;
}

// Reads a box of the tensor, or of its grid of scales.
absl::StatusOr<Box> ReadBox(const waybill_shard_t& shard, const Manifest& manifest,
                            const Format& format) {
  const absl::Span<const int64_t> shape = manifest.tensor_shape(shard.tensor_index);
  if (shard.begin == nullptr && shard.end == nullptr && shard.dimensions == 0) {
    if (format.content != Content::kScales) return Box::Whole(shape);
    if (shape.size() < 2) {
      return absl::InvalidArgumentError("scales are of tensors with two dimensions or more");
    }
    return Box::Whole(GridShape(shape, ScaleExtents(format.quantisation, shape)));
  }
  if (shard.dimensions != shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the box has ", shard.dimensions, " dimensions, the tensor ", shape.size()));
  }
  WAYBILL_ASSIGN_OR_RETURN(const auto begin, Array(shard.begin, shard.dimensions, "begin"));
  WAYBILL_ASSIGN_OR_RETURN(const auto end, Array(shard.end, shard.dimensions, "end"));
  for (uint32_t d = 0; d < shard.dimensions; ++d) {
    if (begin[d] >= 0 && begin[d] <= end[d]) continue;
    return absl::InvalidArgumentError(absl::StrCat("the box is [", begin[d], ", ", end[d],
                                                   ") in dimension ", d, ": not a range"));
  }
  return Box(begin, end);
}

void DenseStrides(absl::Span<const int64_t> extents, Extents& strides) {
  int64_t stride = 1;
  for (size_t d = extents.size(); d-- > 0;) {
    strides[d] = stride;
    // What overflows is refused when the manifest is checked: its extents are too large as well.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(extents[d], 1), &stride)) stride = 0;
  }
}

absl::StatusOr<uint32_t> AddShard(Manifest& manifest, const waybill_shard_t& shard) {
  WAYBILL_RETURN_IF_ERROR(CheckIndex("tensor", shard.tensor_index, manifest.tensor_count()));
  WAYBILL_RETURN_IF_ERROR(CheckIndex("region", shard.region_index, manifest.region_count()));
  WAYBILL_RETURN_IF_ERROR(CheckDimensions(shard.dimensions));
  WAYBILL_ASSIGN_OR_RETURN(const Format format,
                           ReadFormat(shard, manifest.tensor_dtype(shard.tensor_index)));
  WAYBILL_ASSIGN_OR_RETURN(const Box box, ReadBox(shard, manifest, format));
  Extents strides{}, extents{};
  const auto dimensions = static_cast<size_t>(box.dimensions());
  for (size_t d = 0; d < dimensions; ++d) extents[d] = box.extent(static_cast<int>(d));
  if (shard.strides == nullptr) {
    DenseStrides(absl::MakeConstSpan(extents.data(), dimensions), strides);
  } else if (shard.dimensions == dimensions) {
    std::copy_n(shard.strides, dimensions, strides.begin());
  } else {
    return absl::InvalidArgumentError("strides without dimensions");
  }
  return manifest.AddShard(shard.tensor_index, format, box,
                           {.region_index = shard.region_index,
                            .offset_bytes = shard.offset_bytes,
                            .strides = absl::MakeConstSpan(strides.data(), dimensions),
                            .engine_order = absl::NullSafeStringView(shard.engine_order)});
}

absl::StatusOr<uint32_t> AddPadding(Manifest& manifest, const waybill_padding_t& padding) {
  WAYBILL_RETURN_IF_ERROR(CheckIndex("region", padding.region_index, manifest.region_count()));
  WAYBILL_RETURN_IF_ERROR(CheckDimensions(padding.dimensions));
  WAYBILL_ASSIGN_OR_RETURN(const auto extents,
                           Array(padding.extents, padding.dimensions, "extents"));
  for (const int64_t extent : extents) {
    if (extent < 0) return absl::InvalidArgumentError(absl::StrCat("an extent is ", extent));
  }
  Extents strides{};
  if (padding.strides == nullptr) {
    DenseStrides(extents, strides);
  } else {
    std::copy_n(padding.strides, padding.dimensions, strides.begin());
  }
  return manifest.AddPadding(padding.element_bytes == 0 ? 1 : padding.element_bytes, extents,
                             {.region_index = padding.region_index,
                              .offset_bytes = padding.offset_bytes,
                              .strides = absl::MakeConstSpan(strides.data(), padding.dimensions)});
}

// The four functions that add are this with another `add`, which returns the index.
template <typename Add>
waybill_status_t AddTo(absl::string_view doing, waybill_manifest_t* manifest, uint32_t* out_index,
                       waybill_error_t** error, Add add) {
  return Call(doing, error, [&]() -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<ManifestObject>(manifest, "manifest"));
    const absl::StatusOr<uint32_t> index =
        found->With([&](Manifest& m) -> absl::StatusOr<uint32_t> { return add(m); });
    if (!index.ok()) return index.status();
    if (out_index != nullptr) *out_index = *index;
    return absl::OkStatus();
  });
}

absl::StatusOr<std::string> Name(const char* given, absl::string_view of) {
  WAYBILL_ASSIGN_OR_RETURN(std::string name, Text(given, "name"));
  if (name.empty()) return absl::InvalidArgumentError(absl::StrCat("a ", of, " needs a name"));
  return name;
}

}  // namespace
}  // namespace waybill::capi

using waybill::Manifest;
using waybill::capi::AddTo;
using waybill::capi::Blob;
using waybill::capi::Call;
using waybill::capi::CheckOutput;
using waybill::capi::Find;
using waybill::capi::FindObject;
using waybill::capi::ManifestObject;

waybill_status_t waybill_manifest_create(waybill_manifest_t** out_manifest,
                                         waybill_error_t** error) {
  return Call("create a manifest", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_manifest, "out_manifest"));
    *out_manifest = waybill::capi::MakeHandle(std::make_shared<ManifestObject>(Manifest()));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_manifest_add_region(waybill_manifest_t* manifest, const char* name,
                                             uint64_t size_bytes, uint32_t* out_index,
                                             waybill_error_t** error) {
  return AddTo("add a region", manifest, out_index, error,
               [&](Manifest& m) -> absl::StatusOr<uint32_t> {
                 WAYBILL_ASSIGN_OR_RETURN(const auto text, waybill::capi::Name(name, "region"));
                 return m.AddRegion(text, size_bytes);
               });
}

waybill_status_t waybill_manifest_add_tensor(waybill_manifest_t* manifest, const char* name,
                                             uint32_t dtype, const int64_t* shape,
                                             uint32_t dimensions, uint32_t* out_index,
                                             waybill_error_t** error) {
  return AddTo(
      "add a tensor", manifest, out_index, error, [&](Manifest& m) -> absl::StatusOr<uint32_t> {
        WAYBILL_ASSIGN_OR_RETURN(const auto text, waybill::capi::Name(name, "tensor"));
        const auto add = [&]() -> absl::StatusOr<uint32_t> {
          WAYBILL_RETURN_IF_ERROR(waybill::capi::CheckDimensions(dimensions));
          WAYBILL_ASSIGN_OR_RETURN(const waybill::Dtype type, waybill::DtypeFromNumber(dtype));
          WAYBILL_ASSIGN_OR_RETURN(const auto extents,
                                   waybill::capi::Array(shape, dimensions, "shape"));
          for (const int64_t extent : extents) {
            if (extent < 0) {
              return absl::InvalidArgumentError(absl::StrCat("an extent is ", extent));
            }
          }
          return m.AddTensor(text, extents, type);
        };
        absl::StatusOr<uint32_t> index = add();
        if (index.ok()) return index;
        return waybill::While(absl::StrCat("\"", text, "\""), index.status());
      });
}

waybill_status_t waybill_manifest_add_shard(waybill_manifest_t* manifest,
                                            const waybill_shard_t* shard, uint32_t* out_index,
                                            waybill_error_t** error) {
  return AddTo(
      "add a shard", manifest, out_index, error, [&](Manifest& m) -> absl::StatusOr<uint32_t> {
        WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadStruct(shard, "shard"));
        absl::StatusOr<uint32_t> index = waybill::capi::AddShard(m, read);
        if (index.ok() || read.tensor_index >= m.tensor_count()) return index;
        return waybill::While(absl::StrCat("of \"", m.tensor_name(read.tensor_index), "\""),
                              index.status());
      });
}

waybill_status_t waybill_manifest_add_padding(waybill_manifest_t* manifest,
                                              const waybill_padding_t* padding, uint32_t* out_index,
                                              waybill_error_t** error) {
  return AddTo(
      "add padding", manifest, out_index, error, [&](Manifest& m) -> absl::StatusOr<uint32_t> {
        WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadStruct(padding, "padding"));
        return waybill::capi::AddPadding(m, read);
      });
}

waybill_status_t waybill_manifest_add_alias(waybill_manifest_t* manifest, const char* name,
                                            uint32_t tensor_index, uint32_t* out_index,
                                            waybill_error_t** error) {
  return AddTo("add an alias", manifest, out_index, error,
               [&](Manifest& m) -> absl::StatusOr<uint32_t> {
                 WAYBILL_ASSIGN_OR_RETURN(const auto text, waybill::capi::Name(name, "alias"));
                 WAYBILL_RETURN_IF_ERROR(
                     waybill::capi::CheckIndex("tensor", tensor_index, m.tensor_count()));
                 return m.AddAlias(text, tensor_index);
               });
}

uint32_t waybill_manifest_region_count(const waybill_manifest_t* manifest) {
  const auto found = FindObject<ManifestObject>(manifest);
  return found == nullptr ? 0 : found->With([](Manifest& m) { return m.region_count(); });
}

uint64_t waybill_manifest_region_size(const waybill_manifest_t* manifest, uint32_t region_index) {
  const auto found = FindObject<ManifestObject>(manifest);
  if (found == nullptr) return 0;
  return found->With([&](Manifest& m) {
    return region_index < m.region_count() ? m.region_bytes(region_index) : 0;
  });
}

waybill_status_t waybill_manifest_encode(const waybill_manifest_t* manifest,
                                         waybill_blob_t** out_bytes, waybill_error_t** error) {
  return Call("encode a manifest", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_bytes, "out_bytes"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<ManifestObject>(manifest, "manifest"));
    *out_bytes =
        waybill::capi::MakeHandle(std::make_shared<Blob>(waybill::EncodeManifest(found->Copy())));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_manifest_decode(const void* data, size_t size_bytes,
                                         waybill_manifest_t** out_manifest,
                                         waybill_error_t** error) {
  return Call("decode a manifest", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_manifest, "out_manifest"));
    if (data == nullptr && size_bytes > 0) return absl::InvalidArgumentError("data is NULL");
    WAYBILL_ASSIGN_OR_RETURN(Manifest manifest, waybill::DecodeManifest(absl::string_view(
                                                    static_cast<const char*>(data), size_bytes)));
    WAYBILL_RETURN_IF_ERROR(waybill::CheckManifest(manifest, waybill::Holes::kAllowed));
    *out_manifest =
        waybill::capi::MakeHandle(std::make_shared<ManifestObject>(std::move(manifest)));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_manifest_describe(const waybill_manifest_t* manifest,
                                           waybill_blob_t** out_json, waybill_error_t** error) {
  return Call("describe a manifest", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_json, "out_json"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<ManifestObject>(manifest, "manifest"));
    *out_json = waybill::capi::MakeHandle(
        std::make_shared<Blob>(waybill::capi::ManifestToJson(found->Copy())));
    return absl::OkStatus();
  });
}

void waybill_manifest_destroy(waybill_manifest_t* manifest) {
  waybill::capi::DestroyObject<ManifestObject>(manifest);
}
