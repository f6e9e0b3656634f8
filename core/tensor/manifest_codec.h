// A manifest as bytes, for the control channel and for files.
#ifndef WAYBILL_CORE_TENSOR_MANIFEST_CODEC_H_
#define WAYBILL_CORE_TENSOR_MANIFEST_CODEC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/manifest.h"

namespace waybill {

// The same manifest gives the same bytes on every host.
std::string EncodeManifest(const Manifest& manifest);

// kInvalidArgument: not a manifest, columns of unequal lengths, or a schema that is not known. What
// comes back still has to pass CheckManifest().
absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_MANIFEST_CODEC_H_
